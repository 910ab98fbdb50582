//! Copies of backups between repositories with other keys.

use repo::{DiskReader, Repository, Seen, copy, verify};

use crate::writer::{CHUNK_BYTES, Content, Writer, bytes, run};

const SIZE: u64 = 600 * CHUNK_BYTES + 512;

fn read(repository: &Repository, number: u32) -> Vec<u8> {
    let disk = &repository.state().backup(number).unwrap().disks[0];
    let mut content = vec![1; disk.size_bytes as usize];
    run(DiskReader::new(repository, disk).read(0, &mut content)).unwrap();
    content
}

#[test]
fn copies_are_increments_and_the_same() {
    let (mut from, mut to) = (Writer::new(), Writer::new());
    let first: Content = (0..300).map(|n| (2 * n, Some(bytes(n, CHUNK_BYTES)))).collect();
    let second: Content =
        [(0, None), (2, Some(bytes(900, CHUNK_BYTES))), (600, Some(bytes(901, 512)))].into_iter().collect();
    let numbers = [from.backup([(0, SIZE, &first)]).0, from.backup([(0, SIZE, &second)]).0];
    // The disk grows: its last chunk was short.
    let third: Content = [(610, Some(bytes(902, CHUNK_BYTES)))].into_iter().collect();
    let grown = from.backup([(0, SIZE + 10 * CHUNK_BYTES + 3584, &third)]).0;
    let mut read_bytes = Vec::new();
    for number in [numbers[0], numbers[1], grown] {
        let mut passed = 0;
        let now_us = to.now_us();
        let mut progress = |bytes| {
            passed += bytes;
            Ok(())
        };
        let copied = run(copy(&from.repository, number, &mut to.repository, (None, now_us), &mut progress));
        let (copied, figures) = copied.unwrap().expect("it is new");
        assert!(read(&from.repository, number) == read(&to.repository, copied), "backup {number}");
        assert_eq!(figures.read_bytes, passed);
        read_bytes.push(passed);
        let backup = to.repository.state().backup(copied).unwrap();
        let verified =
            run(verify(&to.repository, (copied, backup), 1, &mut Seen::default(), &mut |_| Ok(())));
        assert_eq!(verified.unwrap().findings, [""; 0]);
    }
    assert_eq!(read_bytes, [300 * CHUNK_BYTES, CHUNK_BYTES + 512, CHUNK_BYTES]);
    let now_us = to.now_us();
    // What both have is copied no more, in either direction.
    let mut passed = |_| Ok(());
    let again = run(copy(&from.repository, grown, &mut to.repository, (None, now_us), &mut passed));
    assert_eq!(again.unwrap(), None);
    let back = run(copy(&to.repository, 2, &mut from.repository, (None, now_us), &mut passed));
    assert_eq!(back.unwrap(), None);
}
