//! Backups read by an independent reader, `scripts/restore_backup.py`, which follows `docs/formats/repository.md` and shares
//! no code with this crate.

mod copies;
mod damaged;
mod reader;
mod writer;

use std::fs;
use std::path::Path;

use reader::{Reader, SecretFile};
use repo::{Grace, Repository, new_key_file, prune};
use writer::{CHUNK_BYTES, Content, Writer, bytes, copy_folder, run};

/// Chunks of the small disk, the last one incomplete: two pages of the lowest level.
const SMALL_BYTES: u64 = 300 * CHUNK_BYTES + 1000;
/// Two pages of the second level.
const LARGE_BYTES: u64 = 65_600 * CHUNK_BYTES;

/// Makes a repository with two backups, of which the second is of what has changed. Returns their numbers and contents.
fn two_backups(writer: &mut Writer) -> [(u32, [Content; 2]); 2] {
    let mut small: Content =
        [0, 1, 2, 255, 256, 299].into_iter().map(|n| (n, Some(bytes(n, CHUNK_BYTES)))).collect();
    small.insert(300, Some(bytes(300, 1000)));
    let large: Content = [3, 65_536, 65_599].into_iter().map(|n| (n, Some(bytes(n, CHUNK_BYTES)))).collect();
    let (first, figures) = writer.backup([(0, SMALL_BYTES, &small), (5, LARGE_BYTES, &large)]);
    assert_eq!(figures.new_bytes, 9 * CHUNK_BYTES + 1000);

    // A hole, zeros, a content that the repository has elsewhere, and two new ones.
    let changes: Content = [
        (1, None),
        (2, Some(vec![0; CHUNK_BYTES as usize])),
        (4, Some(bytes(65_536, CHUNK_BYTES))),
        (256, Some(bytes(1000, CHUNK_BYTES))),
        (300, Some(bytes(1001, 1000))),
    ]
    .into();
    let (second, figures) = writer.backup([(0, SMALL_BYTES, &changes), (5, LARGE_BYTES, &Content::new())]);
    assert_eq!(figures.new_bytes, CHUNK_BYTES + 1000);
    let mut changed = small.clone();
    changed.extend(changes);
    [(first, [small, large.clone()]), (second, [changed, large])]
}

#[test]
fn an_independent_reader_restores_every_backup() {
    let Some(reader) = Reader::find() else { return };
    let mut writer = Writer::new();
    let backups = two_backups(&mut writer);
    let expect_all = |writer: &Writer, reader: &Reader| {
        for (number, [small, large]) in &backups {
            reader.expect(writer.folder(), writer.key_file(), (*number, 0), SMALL_BYTES, small);
            reader.expect(writer.folder(), writer.key_file(), (*number, 5), LARGE_BYTES, large);
        }
    };
    reader.expect(
        writer.folder(),
        writer.passphrase_file(),
        (backups[1].0, 0),
        SMALL_BYTES,
        &backups[1].1[0],
    );
    expect_all(&writer, &reader);
    let list = reader.list(writer.folder(), writer.key_file());
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(list.contains("web") && !list.contains("removed"), "{list}");

    // What was removed can be restored until a sweep.
    let (first, second) = (backups[0].0, backups[1].0);
    writer.forget(first);
    let list = reader.list(writer.folder(), writer.key_file());
    assert!(
        list.lines().any(|line| line.starts_with(&first.to_string()) && line.contains("removed")),
        "{list}"
    );
    expect_all(&writer, &reader);
    writer.recall(first);
    assert!(!reader.list(writer.folder(), writer.key_file()).contains("removed"));
    expect_all(&writer, &reader);

    // The second backup needs packs of the first one, which the sweep leaves. The sweep fences a session, too.
    writer.forget(first);
    writer.begin();
    let now_us = writer.now_us();
    let pruned = run(prune(&mut writer.repository, Grace::NONE, false, now_us)).unwrap();
    assert_eq!((pruned.backups, pruned.sessions), (1, 1));
    let refused = reader.refused(writer.folder(), writer.key_file(), (first, 0));
    assert!(refused.contains("was removed"), "{refused}");
    reader.expect(writer.folder(), writer.key_file(), (second, 0), SMALL_BYTES, &backups[1].1[0]);
    reader.expect(writer.folder(), writer.key_file(), (second, 5), LARGE_BYTES, &backups[1].1[1]);
}

#[test]
fn an_independent_reader_refuses_what_it_cannot_trust() {
    let Some(reader) = Reader::find() else { return };
    let mut writer = Writer::new();
    let backups = two_backups(&mut writer);
    let expect_of = |backup: u32, expected: &str, secret: SecretFile<'_>, damage: &dyn Fn(&Path)| {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(writer.folder(), copy.path());
        damage(copy.path());
        let refused = reader.refused(copy.path(), secret, (backup, 0));
        assert!(refused.contains(expected), "expected {expected:?}, found {refused:?}");
    };
    let (first, second) = (backups[0].0, backups[1].0);
    let expect = |expected: &str, secret: SecretFile<'_>, damage: &dyn Fn(&Path)| {
        expect_of(second, expected, secret, damage);
    };
    let key = writer.key_file();
    let other_key = writer.write_file("other key", &new_key_file().unwrap());
    let other_text = writer.write_file("other passphrase", "incorrect horse");
    expect("this key file opens none", ("--key-file", &other_key), &|_| {});
    expect("this passphrase opens none", ("--passphrase-file", &other_text), &|_| {});
    expect("this is no key file", ("--key-file", &other_text), &|_| {});
    let flip = |path: &Path| {
        let mut body = fs::read(path).unwrap();
        // In the first chunk of a pack.
        body[100] ^= 1;
        fs::write(path, body).unwrap();
    };
    // The data of the first backup, and the map of the second one, whose first page is stored before new data. The order of
    // chunks in a pack is that of their names, which differ in each run.
    for (backup, pack) in [(first, "packs/0000000001/00000000"), (second, "packs/0000000003/00000000")] {
        let is_changed = format!("{pack} at 8: the content fails its authentication");
        expect_of(backup, &is_changed, key, &|copy| flip(&copy.join(pack)));
        let is_missing = format!("{pack}: the pack is missing");
        expect_of(backup, &is_missing, key, &|copy| fs::remove_file(copy.join(pack)).unwrap());
        expect_of(backup, &format!("{pack}: 0 bytes at "), key, &|copy| {
            let file = fs::OpenOptions::new().write(true).open(copy.join(pack)).unwrap();
            file.set_len(8).unwrap();
        });
    }
    expect("log/0000000002: the entry is missing", key, &|copy| {
        fs::remove_file(copy.join("log/0000000002")).unwrap();
    });
    expect("log/0000000002: the content fails", key, &|copy| flip(&copy.join("log/0000000002")));
    expect("log/0000000003: the content fails", key, &|copy| {
        fs::copy(copy.join("log/0000000001"), copy.join("log/0000000003")).unwrap();
    });
    expect("repository: the object is missing", key, &|copy| {
        fs::remove_file(copy.join("repository")).unwrap();
    });
    expect("reads format 1", key, &|copy| {
        let text = fs::read_to_string(copy.join("repository")).unwrap();
        fs::write(copy.join("repository"), text.replace("\"format\": 1", "\"format\": 2")).unwrap();
    });
}

/// Two histories of one repository have the same keys, so that only the chain of hashes tells their entries apart.
#[test]
fn an_independent_reader_refuses_entries_of_another_history() {
    let Some(reader) = Reader::find() else { return };
    let mut writer = Writer::new();
    let backups = two_backups(&mut writer);
    let other = tempfile::tempdir().unwrap();
    copy_folder(writer.folder(), other.path());
    let mut fork = run(Repository::open(writer::connect(other.path()), &writer.secret(), "fork")).unwrap();
    for repository in [&mut fork, &mut writer.repository] {
        run(repository.forget(vec![backups[0].0], 50)).unwrap();
        run(repository.recall(vec![backups[0].0], 51)).unwrap();
    }
    fs::copy(writer.folder().join("log/0000000005"), other.path().join("log/0000000005")).unwrap();
    let refused = reader.refused(other.path(), writer.key_file(), (backups[0].0, 0));
    assert!(refused.contains("log/0000000006: the entry does not follow"), "{refused}");
}

#[test]
fn an_independent_reader_finds_the_end_of_a_log_missing() {
    let Some(reader) = Reader::find() else { return };
    let mut writer = Writer::new();
    let backups = two_backups(&mut writer);
    let (first, small) = (backups[0].0, &backups[0].1[0]);
    while writer.repository.state().number < 64 {
        writer.forget(first);
        writer.recall(first);
    }
    assert!(writer.folder().join("state/0000000064").exists());
    reader.expect(writer.folder(), writer.key_file(), (first, 0), SMALL_BYTES, small);
    // The recorded state is no source of the reader.
    fs::write(writer.folder().join("state/0000000064"), "damaged").unwrap();
    reader.expect(writer.folder(), writer.key_file(), (first, 0), SMALL_BYTES, small);
    fs::remove_file(writer.folder().join("log/0000000064")).unwrap();
    let refused = reader.refused(writer.folder(), writer.key_file(), (first, 0));
    assert!(refused.contains("log/0000000064: the entry is missing"), "{refused}");
}

#[test]
fn an_independent_reader_replaces_no_file() {
    let Some(reader) = Reader::find() else { return };
    let mut writer = Writer::new();
    let backups = two_backups(&mut writer);
    let output = writer.folder().join("output.raw");
    fs::write(&output, "precious").unwrap();
    let done = reader.run(
        writer.folder(),
        writer.key_file(),
        &["restore", &backups[0].0.to_string(), "0"],
        Some(&output),
    );
    let refused = done.expect_err("the output exists");
    assert!(refused.contains("File exists"), "{refused}");
    assert_eq!(fs::read_to_string(&output).unwrap(), "precious");
}
