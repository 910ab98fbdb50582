//! The owner of a log: it is accepted only for the file for which it was kept, and not for an earlier state of that
//! file.

use blk::layer::Layer;
use blk::reactor::{Limits, OpenMode};
use blk::{Buf, Env, File};
use sim::{Options, SimWorld};

use super::entry::Entry;
use super::log::Log;
use super::*;
use crate::cowd::{Directory, HEADER_BYTES, Header};
use crate::testing::{PARENT, flush, read, root, sectors, write};

const FILE: &str = "web-000001-delta.vmdk";
const CAPACITY: u64 = 4096 * 3;

fn facts() -> DeltaParams<'static> {
    let growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };
    DeltaParams { name: "web-000001.vmdk", capacity_sectors: CAPACITY, writable: true, growth }
}

fn in_world(test: impl AsyncFnOnce(Env) + 'static) {
    let world = SimWorld::new(1, Options::default());
    assert!(world.run(async move |env| test(env).await).is_some());
}

/// Writes and flushes sector 0, writes sector 8 alone, and ends the process.
async fn leave(env: &Env) {
    let file = root(env).create_new(FILE).await.unwrap();
    root(env).sync().await.unwrap();
    let delta = VmfsSparse::create(env.clone(), file, facts(), 1).await.unwrap();
    write(&delta, 0, &[1; 512]).await.unwrap();
    flush(&delta).await.unwrap();
    write(&delta, sectors(8), &[2; 512]).await.unwrap();
}

async fn open_file(env: &Env, name: &str) -> File {
    root(env).open(name, OpenMode::Write).await.unwrap()
}

async fn bytes(file: &File, offset: u64, len: usize) -> Buf {
    let (bytes, result) = file.read(offset, Buf::alloc(len)).await;
    result.unwrap();
    bytes
}

async fn head(file: &File) -> (Header, Directory) {
    let size = file.size().await.unwrap();
    let header = Header::decode(FILE, &bytes(file, 0, HEADER_BYTES).await, size).unwrap();
    let at = u64::from(header.directory_sector()) * SECTOR;
    let directory = bytes(file, at, header.directory_bytes()).await;
    let directory = Directory::decode(FILE, &header, &directory, size).unwrap();
    (header, directory)
}

#[test]
fn a_log_belongs_to_one_file_in_its_latest_state() {
    in_world(async |env| {
        leave(&env).await;
        let file = open_file(&env, FILE).await;
        let (header, directory) = head(&file).await;
        let limits = file.limits();
        let read = |limits| Log::read(&env, header.log(), &directory, limits);
        assert_eq!(read(limits).unwrap().len(), 1, "what the flush has covered is gone from it");
        assert_eq!(read(Limits { inode: limits.inode + 1, ..limits }), None);
        let begun_us = env.unix_us();
        let written = |modified_us| read(Limits { modified_us, ..limits });
        assert!(written(begun_us - 50_000_000).is_some(), "clocks of file systems lag behind");
        assert_eq!(written(begun_us - 100_000_000), None, "an old copy in its place");
    });
}

#[test]
fn a_copied_delta_reports_that_unflushed_writes_are_lost() {
    in_world(async |env| {
        leave(&env).await;
        let (file, copy) = (open_file(&env, FILE).await, root(&env).create_new("copy.vmdk").await.unwrap());
        let size = file.size().await.unwrap();
        copy.write(0, bytes(&file, 0, size as usize).await).await.unwrap();
        let copied = VmfsSparse::open(env.clone(), copy, facts()).await.unwrap();
        assert!(copied.has_lost_writes());
        let content = read(&copied, 0..sectors(9)).await.unwrap();
        assert_eq!((content[0], content[sectors(8) as usize]), (1, PARENT));
        let own = VmfsSparse::open(env.clone(), file, facts()).await.unwrap();
        assert!(!own.has_lost_writes());
        let content = read(&own, 0..sectors(9)).await.unwrap();
        assert_eq!((content[0], content[sectors(8) as usize]), (1, 2));
    });
}

#[test]
fn a_log_that_contradicts_its_file_is_not_used() {
    in_world(async |env| {
        leave(&env).await;
        let file = open_file(&env, FILE).await;
        let (header, directory) = head(&file).await;
        let entries = Log::read(&env, header.log(), &directory, file.limits()).unwrap();
        let Entry::Published { table: table_sector, .. } = entries[0] else { panic!("{entries:?}") };
        let memory = env.memory().unwrap();
        let name = memory.list().into_iter().find(|name| !memory.read(name).unwrap().is_empty()).unwrap();
        // The last word but four of the entry is the sector of the region's table.
        let mut bytes = memory.read(&name).unwrap();
        let at = bytes.len() - 16;
        bytes[at..at + 4].copy_from_slice(&(table_sector + 1).to_le_bytes());
        memory.clear(&name).unwrap();
        memory.append(&name, &bytes).unwrap();
        let delta = VmfsSparse::open(env.clone(), file, facts()).await.unwrap();
        assert!(delta.has_lost_writes());
        let content = read(&delta, 0..sectors(9)).await.unwrap();
        assert_eq!((content[0], content[sectors(8) as usize]), (1, PARENT));
        assert_eq!(delta.check().await.unwrap(), Vec::<String>::new());
    });
}
