//! One script of operations with known answers, for every reactor: what it checks is the contract of `blk::reactor`.
//!
//! Included by path from the tests of each implementation. Give it an empty directory; it panics where the world
//! differs from the contract, and leaves the directory empty again.
// Some of the binaries that include it use its helpers only.
#![allow(dead_code)]

use blk::reactor::OpenMode;
use blk::{Buf, Dir, Env, ErrorKind};

/// A whole number of blocks for any device.
const PIECE: usize = 8192;

/// Bytes that differ from place to place and from stamp to stamp.
pub(super) fn pattern(stamp: u8, len: usize) -> Buf {
    let mut buf = Buf::alloc(len);
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte = (at / 512) as u8 ^ (at as u8).wrapping_mul(31) ^ stamp;
    }
    buf
}

/// Why something failed; panics if it did not.
pub(super) fn kind<T>(result: blk::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("succeeded, and should have failed"),
        Err(e) => e.kind,
    }
}

/// The whole script.
pub(super) async fn script(env: &Env, dir: &Dir) {
    whole_transfers(dir).await;
    misaligned_transfers(dir).await;
    past_the_end(dir).await;
    space(dir).await;
    extents(dir).await;
    names(dir).await;
    second_names(dir).await;
    small_files(dir).await;
    locks(dir).await;
    timers(env).await;
    many_at_once(env, dir).await;
    assert_eq!(dir.list().await.unwrap(), Vec::<String>::new(), "the script cleans up");
}

async fn whole_transfers(dir: &Dir) {
    let file = dir.create_new("whole").await.unwrap();
    assert_eq!(file.size().await.unwrap(), 0);
    file.write(0, pattern(1, PIECE)).await.unwrap();
    file.write(PIECE as u64 * 3, pattern(2, PIECE)).await.unwrap();
    file.flush().await.unwrap();
    assert_eq!(file.size().await.unwrap(), PIECE as u64 * 4);
    let (read, result) = file.read(0, Buf::alloc(PIECE * 4)).await;
    result.unwrap();
    assert_eq!(&read[..PIECE], &pattern(1, PIECE)[..]);
    assert!(read[PIECE..PIECE * 3].iter().all(|&b| b == 0), "what was never written reads as zeros");
    assert_eq!(&read[PIECE * 3..], &pattern(2, PIECE)[..]);

    // Another handle sees the same bytes, and cannot write when opened for reading.
    let again = dir.open("whole", OpenMode::Read).await.unwrap();
    let (read, result) = again.read(0, Buf::alloc(PIECE)).await;
    result.unwrap();
    assert_eq!(&read[..], &pattern(1, PIECE)[..]);
    assert!(again.write(0, pattern(3, PIECE)).await.is_err());
    let latched = again.write(0, pattern(3, PIECE)).await.unwrap_err();
    assert_eq!(latched.kind, ErrorKind::Latched);
    dir.unlink("whole").await.unwrap();
}

/// Sectors and odd ranges are read-modify-written where the device wants more; neighbours stay.
async fn misaligned_transfers(dir: &Dir) {
    let file = dir.create_new("odd").await.unwrap();
    let mut model = pattern(4, PIECE * 2).to_vec();
    file.write(0, Buf::copy_of(&model)).await.unwrap();
    for (offset, len, stamp) in
        [(512, 512, 5), (100, 30, 6), (4095, 2, 7), (4096 - 512, 1024, 8), (1, 8191, 9)]
    {
        let data = pattern(stamp, len);
        model[offset..offset + len].copy_from_slice(&data);
        file.write(offset as u64, data).await.unwrap();
    }
    // Misaligned memory alone.
    let slice = pattern(10, PIECE + 512).freeze().slice(512..512 + 4096);
    model[4096..8192].copy_from_slice(&slice);
    file.write(4096, slice).await.unwrap();
    let (read, result) = file.read(0, Buf::alloc(PIECE * 2)).await;
    result.unwrap();
    assert_eq!(&read[..], &model[..]);
    let (read, result) = file.read(4000, Buf::alloc(777)).await;
    result.unwrap();
    assert_eq!(&read[..], &model[4000..4777]);
    dir.unlink("odd").await.unwrap();
}

async fn past_the_end(dir: &Dir) {
    let file = dir.create_new("short").await.unwrap();
    file.write(0, pattern(1, PIECE)).await.unwrap();
    let (_, result) = file.read(0, Buf::alloc(PIECE * 2)).await;
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
    assert!(error.cause.contains(&PIECE.to_string()), "says how much there was: {error}");
    let (_, result) = file.read(PIECE as u64 * 10, Buf::alloc(PIECE)).await;
    assert_eq!(kind(result), ErrorKind::Damaged);
    assert!(file.latched().is_none(), "a failed read loses nothing");

    file.set_len(1000).await.unwrap();
    assert_eq!(file.size().await.unwrap(), 1000);
    assert_eq!(file.read_all(4096).await.unwrap(), pattern(1, PIECE)[..1000]);
    let (_, result) = file.read(0, Buf::alloc(PIECE)).await;
    assert_eq!(kind(result), ErrorKind::Damaged);
    // Growing again shows zeros, never what was cut off.
    file.set_len(PIECE as u64).await.unwrap();
    let (read, result) = file.read(0, Buf::alloc(PIECE)).await;
    result.unwrap();
    assert_eq!(&read[..1000], &pattern(1, PIECE)[..1000]);
    assert!(read[1000..].iter().all(|&b| b == 0));
    dir.unlink("short").await.unwrap();
}

async fn space(dir: &Dir) {
    let before = dir.space().await.unwrap();
    assert!(before.free_bytes <= before.total_bytes && before.total_bytes > 0);
    let file = dir.create_new("space").await.unwrap();
    file.allocate(0, PIECE as u64 * 2).await.unwrap();
    assert_eq!(file.size().await.unwrap(), PIECE as u64 * 2, "allocating extends");
    file.write(0, pattern(1, PIECE * 2)).await.unwrap();
    file.allocate(0, PIECE as u64 * 4).await.unwrap();
    file.allocate(0, 0).await.unwrap();
    let (read, result) = file.read(0, Buf::alloc(PIECE * 4)).await;
    result.unwrap();
    assert_eq!(&read[..PIECE * 2], &pattern(1, PIECE * 2)[..], "existing bytes stay");
    assert!(read[PIECE * 2..].iter().all(|&b| b == 0), "reserved space reads as zeros");

    for punch in [false, true] {
        file.write(0, pattern(2, PIECE * 4)).await.unwrap();
        file.zero(4096, 4096, punch).await.unwrap();
        file.zero(0, 0, punch).await.unwrap();
        // Past the end: nothing to zero, and nothing may grow.
        file.zero(PIECE as u64 * 3, PIECE as u64 * 100, punch).await.unwrap();
        file.zero(PIECE as u64 * 200, 4096, punch).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(file.size().await.unwrap(), PIECE as u64 * 4);
        let mut model = pattern(2, PIECE * 4).to_vec();
        model[4096..8192].fill(0);
        model[PIECE * 3..].fill(0);
        let (read, result) = file.read(0, Buf::alloc(PIECE * 4)).await;
        result.unwrap();
        assert!(read[..] == model[..], "zeroing, punch {punch}");
    }
    dir.unlink("space").await.unwrap();
}

async fn extents(dir: &Dir) {
    const STEP: u64 = 1 << 20;
    let file = dir.create_new("sparse").await.unwrap();
    file.set_len(STEP * 8).await.unwrap();
    assert_eq!(file.extents(0, STEP * 8).await.unwrap(), []);
    file.write(STEP * 2, pattern(1, 64 << 10)).await.unwrap();
    file.write(STEP * 5, pattern(2, 64 << 10)).await.unwrap();
    file.flush().await.unwrap();
    let found = file.extents(0, STEP * 8).await.unwrap();
    let covers = |at: u64| found.iter().any(|e| e.offset <= at && at < e.offset + e.len);
    assert!(covers(STEP * 2) && covers(STEP * 2 + (64 << 10) - 1) && covers(STEP * 5), "{found:?}");
    assert!(!covers(0) && !covers(STEP * 4) && !covers(STEP * 7), "{found:?}");
    assert!(found.windows(2).all(|p| p[0].offset + p[0].len <= p[1].offset), "in order: {found:?}");
    // Clipped to the range that was asked for.
    let part = file.extents(STEP * 2 + 4096, 8192).await.unwrap();
    assert_eq!(part.len(), 1);
    assert_eq!((part[0].offset, part[0].len), (STEP * 2 + 4096, 8192));
    assert_eq!(file.extents(STEP * 100, 4096).await.unwrap(), []);
    dir.unlink("sparse").await.unwrap();
}

async fn names(dir: &Dir) {
    drop(dir.create_new("b").await.unwrap());
    drop(dir.create_new("a").await.unwrap());
    assert_eq!(kind(dir.create_new("a").await), ErrorKind::Exists);
    let sub = dir.open_dir("c", true).await.unwrap();
    // Making a folder that exists opens it.
    drop(dir.open_dir("c", true).await.unwrap());
    assert_eq!(dir.list().await.unwrap(), ["a", "b", "c/"]);
    drop(sub.create_new("inside").await.unwrap());
    assert!(dir.remove_dir("c").await.is_err(), "not empty");
    sub.unlink("inside").await.unwrap();
    sub.sync().await.unwrap();

    let kept = dir.open("a", OpenMode::Write).await.unwrap();
    kept.write(0, pattern(1, PIECE)).await.unwrap();
    dir.rename("a", "b").await.unwrap();
    dir.sync().await.unwrap();
    assert_eq!(dir.list().await.unwrap(), ["b", "c/"], "a rename replaces");
    assert_eq!(dir.open("b", OpenMode::Read).await.unwrap().size().await.unwrap(), PIECE as u64);
    assert_eq!(kind(dir.open("a", OpenMode::Read).await), ErrorKind::NotFound);
    assert_eq!(kind(dir.unlink("a").await), ErrorKind::NotFound);
    assert_eq!(kind(dir.rename("a", "d").await), ErrorKind::NotFound);
    dir.unlink_if_present("a").await.unwrap();
    for refused in ["", ".", "..", "x/y", "../b"] {
        assert_eq!(kind(dir.open(refused, OpenMode::Read).await), ErrorKind::Refused);
    }

    // An open file outlives its name.
    dir.unlink("b").await.unwrap();
    let (read, result) = kept.read(0, Buf::alloc(PIECE)).await;
    result.unwrap();
    assert_eq!(&read[..], &pattern(1, PIECE)[..]);
    dir.remove_dir("c").await.unwrap();
    dir.sync().await.unwrap();
}

async fn second_names(dir: &Dir) {
    let other = dir.open_dir("other", true).await.unwrap();
    let file = dir.create_new("a").await.unwrap();
    file.write(0, pattern(1, PIECE)).await.unwrap();
    drop(file);
    dir.link("a", &other, "b").await.unwrap();
    assert_eq!(kind(dir.link("a", &other, "b").await), ErrorKind::Exists);
    assert_eq!(kind(dir.link("none", &other, "c").await), ErrorKind::NotFound);
    assert_eq!(kind(dir.link("a", &other, "../c").await), ErrorKind::Refused);
    dir.unlink("a").await.unwrap();
    let kept = other.read_file("b", 1 << 20).await.unwrap();
    assert_eq!(kept, pattern(1, PIECE).to_vec(), "the file outlives its first name");
    other.link("b", dir, "a").await.unwrap();
    let inode = async |dir: &Dir, name| dir.open(name, OpenMode::Read).await.unwrap().limits().inode;
    assert_eq!(inode(dir, "a").await, inode(&other, "b").await);
    other.unlink("b").await.unwrap();
    dir.unlink("a").await.unwrap();
    dir.remove_dir("other").await.unwrap();
}

async fn small_files(dir: &Dir) {
    let text = "x".repeat(5000);
    for content in ["", "one line\n", &text] {
        dir.replace_file("text", content.as_bytes()).await.unwrap();
        assert_eq!(dir.read_file("text", 1 << 20).await.unwrap(), content.as_bytes());
        assert_eq!(dir.list().await.unwrap(), ["text"], "no temporary file stays");
    }
    assert_eq!(kind(dir.read_file("text", 100).await), ErrorKind::Damaged, "the limit holds");
    dir.unlink("text").await.unwrap();
}

async fn locks(dir: &Dir) {
    let lock = dir.lock("lock").await.unwrap();
    assert_eq!(kind(dir.lock("lock").await), ErrorKind::Locked);
    drop(lock);
    let again = dir.lock("lock").await.unwrap();
    dir.unlink("lock").await.unwrap();
    drop(again);
}

async fn timers(env: &Env) {
    use std::cell::RefCell;
    use std::rc::Rc;
    let start = env.now_ns();
    let order = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = [(3u32, 3000u64), (1, 1000), (2, 2000), (4, 3000)]
        .map(|(name, us)| {
            let (task_env, order) = (env.clone(), order.clone());
            env.spawn(async move {
                task_env.sleep_until(start + us * 1000).await;
                assert!(task_env.now_ns() >= start + us * 1000, "never early");
                order.borrow_mut().push(name);
            })
        })
        .into();
    for task in tasks {
        task.join().await;
    }
    assert_eq!(*order.borrow(), [1, 2, 3, 4], "by time, then by order of asking");
    // A time that has passed is due at once.
    env.sleep_until(0).await;
}

/// Many writers at once, each with its own place; then all of it read back.
async fn many_at_once(env: &Env, dir: &Dir) {
    const WRITERS: usize = 64;
    let file = dir.create_new("many").await.unwrap();
    file.set_len((WRITERS * PIECE) as u64).await.unwrap();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|i| {
            let file = file.clone();
            env.spawn(async move { file.write((i * PIECE) as u64, pattern(i as u8, PIECE)).await })
        })
        .collect();
    for task in tasks {
        task.join().await.unwrap();
    }
    file.flush().await.unwrap();
    let (read, result) = file.read(0, Buf::alloc(WRITERS * PIECE)).await;
    result.unwrap();
    for i in 0..WRITERS {
        assert!(read[i * PIECE..(i + 1) * PIECE] == pattern(i as u8, PIECE)[..], "writer {i}");
    }
    dir.unlink("many").await.unwrap();
}
