//! Repositories in buckets of S3: a bucket in memory, and the server versitygw where it is installed, both behind a proxy
//! that injects faults.

mod creations;
mod errors;
mod faults;
mod http;
mod memory_bucket;
mod proxy;
mod repositories;
mod versitygw;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use blk::{Error, ErrorKind, Result};
use repo::{DiskReader, Objects, Origin, Repository, Secret, Session, Timeouts, connect_with};

use memory_bucket::MemoryBucket;
use proxy::{Proxy, Store};
use versitygw::Versitygw;

const BUCKET: &str = "backups";
const ACCESS_KEY: &str = "AKTESTS";
const SECRET_KEY: &str = "dGhlIHNlY3JldA/that+is+in+no+message";
const CHUNK_BYTES: u32 = 4096;
const CHUNKS: u64 = 600;
/// Times long enough for a busy machine that carries requests out.
const TIMES: Timeouts = Timeouts {
    request: Duration::from_secs(60),
    upload: Duration::from_secs(60),
    retry: Duration::from_secs(120),
};
/// Times after which a test of a failure ends.
const SHORT_TIMES: Timeouts = Timeouts { retry: Duration::from_millis(300), ..TIMES };

/// Declares tests that run with each kind of store.
macro_rules! on_each_store {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test]
            fn $test() {
                super::$test(&crate::memory());
            })*
        }

        mod versitygw {
            $(#[test]
            fn $test() {
                if let Some(proxy) = crate::versitygw() {
                    super::$test(&proxy);
                }
            })*
        }
    };
}
use on_each_store;

fn memory() -> Proxy {
    Proxy::start(Store::Memory(MemoryBucket::default()))
}

fn versitygw() -> Option<Proxy> {
    Versitygw::start().map(|server| Proxy::start(Store::Versitygw(server)))
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// The variables of a user of the store behind `proxy`.
fn environment(proxy: &Proxy) -> BTreeMap<String, String> {
    let endpoint = format!("http://{}", proxy.address);
    let pairs = [
        ("AWS_ENDPOINT", &*endpoint),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ("AWS_ALLOW_HTTP", "true"),
        ("PATH", "/bin"),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn at(prefix: &str) -> String {
    format!("s3://{BUCKET}{prefix}")
}

fn bucket(proxy: &Proxy, prefix: &str, timeouts: Timeouts) -> Arc<dyn Objects> {
    connect_with(&at(prefix), true, environment(proxy), timeouts).unwrap()
}

fn secret() -> Secret {
    Secret::Key([5; 32])
}

async fn init(objects: &Arc<dyn Objects>) -> Result<Repository> {
    Repository::init(objects.clone(), (&secret(), "key"), CHUNK_BYTES, ("admin", 0)).await
}

async fn open(objects: &Arc<dyn Objects>) -> Result<Repository> {
    Repository::open(objects.clone(), &secret(), "admin").await
}

/// Chunks of a disk by number; each consists of its number and this one.
type Content = BTreeMap<u64, u64>;

fn chunk(n: u64, content: u64) -> Vec<u8> {
    // Contents that compress badly, so that packs have several chunks of many bytes.
    let mut state = n * 1000 + content;
    let mut bytes = Vec::new();
    while bytes.len() < CHUNK_BYTES as usize {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 32).to_le_bytes()[..4]);
    }
    bytes
}

/// Backs up the chunks of `changes` on top of the latest backup.
async fn backup(repository: &mut Repository, changes: &Content, time_us: u64) -> Result<u32> {
    let mut session = Session::begin(repository, None, time_us).await?;
    let parent = session.state().latest("vm").map(|(_, backup)| backup.disks[0].clone());
    let mut disk = session.disk(0, CHUNKS * u64::from(CHUNK_BYTES), parent.as_ref()).await?;
    for page in 0..CHUNKS.div_ceil(256) {
        let of_page = changes.range(256 * page..256 * (page + 1));
        let chunks = of_page.map(|(n, content)| (*n, Some(chunk(*n, *content)))).collect();
        session.write(&mut disk, chunks).await?;
    }
    session.finish(disk).await?;
    let origin = Origin { vm: "vm".into(), vm_id: "vm".into(), ..Origin::default() };
    session.commit(origin, time_us, time_us).await.map(|(number, _)| number)
}

/// Reads a whole backup, and compares it.
async fn compare(repository: &Repository, number: u32, content: &Content) -> Result<()> {
    let reader = DiskReader::new(repository, &repository.state().backup(number)?.disks[0]);
    for n in 0..CHUNKS {
        let mut found = vec![1; CHUNK_BYTES as usize];
        reader.read(n * u64::from(CHUNK_BYTES), &mut found).await?;
        let expected =
            content.get(&n).map_or_else(|| vec![0; CHUNK_BYTES as usize], |content| chunk(n, *content));
        assert_eq!(found, expected, "backup {number}, chunk {n}");
    }
    Ok(())
}

/// Asserts what every message of an error keeps to, and that this one has the kind and the parts.
fn assert_error<T>(result: Result<T>, kind: ErrorKind, parts: &[&str]) -> Error {
    let Err(e) = result else { panic!("no error; expected one with {parts:?}") };
    let text = e.to_string();
    println!("{text}");
    assert_eq!(e.kind, kind, "{text}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains(SECRET_KEY), "the message has the secret: {text}");
    assert!(!text.contains("StringToSign") && !text.contains("4711"), "{text}");
    assert!(text.len() < 500 && !text.contains('\n'), "{text}");
    e
}
