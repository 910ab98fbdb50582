//! Repositories that lost objects or were rolled back: refused, or used without what is lost, and never a backup that is
//! reported and cannot be read.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use blk::{ErrorKind, Result};
use repo::{Repository, Secret, Seen, Session, verify};

use crate::writer::{CHUNK_BYTES, Content, Writer, bytes, connect, copy_folder, run};

const SIZE: u64 = 64 * CHUNK_BYTES;

fn content(seed: u64) -> Content {
    (0..8).map(|n| (n, Some(bytes(100 * seed + n, CHUNK_BYTES)))).collect()
}

fn open(writer: &Writer) -> Result<Repository> {
    run(Repository::open(connect(writer.folder()), &writer.secret(), "test"))
}

/// Makes a backup of one disk, which has nothing in common with those before.
fn backup(repository: &mut Repository, cache: Option<&Path>, seed: u64) -> Result<u32> {
    run(async {
        let mut session = Session::begin(repository, cache, seed).await?;
        let mut disk = session.disk(0, SIZE, None).await?;
        session.write(&mut disk, content(seed).into_iter().collect()).await?;
        session.finish(disk).await?;
        session.commit(repo::Origin::default(), seed, seed).await.map(|(number, _)| number)
    })
}

fn findings(repository: &Repository) -> Vec<String> {
    let mut seen = Seen::default();
    let mut all = Vec::new();
    for (number, backup) in &repository.state().backups {
        let found = run(verify(repository, (*number, backup), 1, &mut seen, &mut |_| Ok(())));
        all.extend(found.unwrap().findings);
    }
    all
}

#[test]
fn packs_of_a_session_that_the_log_has_lost_are_not_taken_for_new_ones() {
    let mut writer = Writer::new();
    writer.backup([(0, SIZE, &content(1))]);
    writer.backup([(0, SIZE, &content(2))]);
    for number in [3, 4] {
        fs::remove_file(writer.folder().join(format!("log/{number:010}"))).unwrap();
    }
    let mut repository = open(&writer).unwrap();
    let refused = backup(&mut repository, None, 3).unwrap_err();
    assert!(
        refused.kind == ErrorKind::Damaged && refused.cause.contains("the log has lost entries"),
        "{refused}"
    );
    assert_eq!(findings(&open(&writer).unwrap()), [""; 0]);
}

#[test]
fn a_cache_that_is_ahead_of_its_repository_is_not_believed() {
    let mut writer = Writer::new();
    writer.backup([(0, SIZE, &content(1))]);
    let (kept, cache) = (writer.write_file("kept", ""), writer.write_file("cache2", ""));
    for file in [&kept, &cache] {
        fs::remove_file(file).unwrap();
    }
    copy_folder(writer.folder(), &kept);
    let mut repository = open(&writer).unwrap();
    backup(&mut repository, Some(&cache), 2).unwrap();
    fs::remove_dir_all(writer.folder()).unwrap();
    copy_folder(&kept, writer.folder());
    let mut repository = open(&writer).unwrap();
    backup(&mut repository, Some(&cache), 2).unwrap();
    assert_eq!(findings(&open(&writer).unwrap()), [""; 0]);
    // A new cache, of a session that ended without a backup, is bound too.
    let unfinished = writer.write_file("cache4", "");
    fs::remove_file(&unfinished).unwrap();
    let lost = writer.write_file("lost", "");
    fs::remove_file(&lost).unwrap();
    copy_folder(writer.folder(), &lost);
    run(async {
        let mut session = Session::begin(&mut repository, Some(&unfinished), 5).await.unwrap();
        let mut disk = session.disk(0, SIZE, None).await.unwrap();
        session.write(&mut disk, content(7).into_iter().collect()).await.unwrap();
        session.finish(disk).await.unwrap();
    });
    fs::remove_dir_all(writer.folder()).unwrap();
    copy_folder(&lost, writer.folder());
    let mut repository = open(&writer).unwrap();
    backup(&mut repository, Some(&cache), 8).unwrap();
    backup(&mut repository, Some(&unfinished), 7).unwrap();
    assert_eq!(findings(&open(&writer).unwrap()), [""; 0]);
    // Another repository with the same cache.
    let other = Writer::new();
    let mut repository = open(&other).unwrap();
    backup(&mut repository, Some(&cache), 2).unwrap();
    assert_eq!(findings(&open(&other).unwrap()), [""; 0]);
}

#[test]
fn a_damaged_list_or_key_is_no_obstacle_for_others() {
    let mut writer = Writer::new();
    writer.backup([(0, SIZE, &content(1))]);
    for file in ["index/0000000001/00000000", "keys/00112233445566aa"] {
        fs::write(writer.folder().join(file), "damaged").unwrap();
    }
    let mut repository = open(&writer).unwrap();
    let cache = writer.write_file("cache3", "this is no cache");
    backup(&mut repository, Some(&cache), 2).unwrap();
    assert_eq!(repository.state().backups.len(), 2);
    run(repository.remove_key("00112233445566aa")).unwrap();
    let wrong = run(Repository::open(connect(writer.folder()), &Secret::Key([1; 32]), "test")).err().unwrap();
    assert!(
        wrong.kind == ErrorKind::Refused && wrong.cause.contains("opens none of the repository's keys"),
        "{wrong}"
    );
}

#[test]
fn an_entry_that_is_missing_is_no_end_of_the_log() {
    let mut writer = Writer::new();
    // Beyond a recorded state, which is at 64.
    for _ in 0..66 {
        writer.begin();
    }
    for (number, says) in [(64, "is missing"), (65, "is missing")] {
        let path = writer.folder().join(format!("log/{number:010}"));
        let body = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let refused = open(&writer).err().unwrap();
        assert!(refused.kind == ErrorKind::Damaged && refused.cause.contains(says), "{number}: {refused}");
        fs::write(&path, body).unwrap();
    }
    // More entries are missing than are read at once.
    let mut wide = Writer::new();
    (0..40).for_each(|_| wide.begin());
    for number in 10..35 {
        fs::remove_file(wide.folder().join(format!("log/{number:010}"))).unwrap();
    }
    assert!(open(&wide).err().unwrap().cause.contains("is missing"));
    // The log has what a damaged record of the state has.
    fs::write(writer.folder().join("state/0000000064"), "damaged").unwrap();
    assert_eq!(open(&writer).unwrap().state().number, 66);
}

#[test]
fn chunks_of_another_length_or_beyond_the_disk_are_refused() {
    let mut writer = Writer::new();
    let refused = run(async {
        let mut session = Session::begin(&mut writer.repository, None, 3).await.unwrap();
        let mut disk = session.disk(0, 2 * CHUNK_BYTES + 512, None).await.unwrap();
        let mut causes = Vec::new();
        for chunks in [
            vec![(0, Some(vec![1; 5000]))],
            vec![(2, Some(vec![1; CHUNK_BYTES as usize]))],
            vec![(3, None)],
            vec![(1, None), (0, None)],
        ] {
            causes.push(session.write(&mut disk, chunks).await.unwrap_err().cause);
        }
        causes
    });
    assert!(
        refused[0].contains("5000 bytes, expected 4096") && refused[1].contains("expected 512"),
        "{refused:?}"
    );
    assert!(refused[2].contains("expected 0") && refused[3].contains("ascend"), "{refused:?}");
}

#[test]
fn a_repository_is_made_once() {
    let writer = Writer::new();
    let objects = connect(writer.folder());
    let again = run(Repository::init(Arc::clone(&objects), (&writer.secret(), "again"), 4096, ("test", 1)));
    assert_eq!(again.err().unwrap().kind, ErrorKind::Exists);
    let odd = run(Repository::init(objects, (&writer.secret(), "again"), 5000, ("test", 1)));
    assert_eq!(odd.err().unwrap().kind, ErrorKind::Invalid);
}
