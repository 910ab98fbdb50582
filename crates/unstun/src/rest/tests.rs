//! The server over a core, with clients that break the protocol.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use api::client::{Client, runtime};
use api::location::Datastore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::listeners::{Listeners, bind_unix, serve};
use crate::access::authorize::Access;
use crate::alarms::Alarms;
use crate::console::Shown;
use crate::daemon::{BinPolicy, CoreHandle, Place};
use crate::memory::Memory;
use crate::recorder::Recorder;

/// A client that says nothing more holds no connection for ever.
#[test]
fn a_header_that_does_not_end_ends_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let datastore = Datastore::for_daemon(Some(folder.path()), false).unwrap();
    let place = Place {
        name: datastore.name(),
        root: datastore.root().to_path_buf(),
        map_cache_bytes: 16 << 20,
        memory: Memory::new(1 << 30).unwrap(),
        bin: BinPolicy::default(),
        guests_dir: std::path::PathBuf::new(),
        nbd: Vec::new(),
        nbd_tls: None,
        cores: 1,
        activity: export::Activity::new(1),
    };
    let core = Arc::new(CoreHandle::start(place, vec![Arc::default()]).unwrap());
    let socket = datastore.api_socket();
    let all = async {
        let recorder = Recorder::start(&core, &datastore.own_folder(), false);
        let shown = Shown { recorder, reports: None, ends: watch::channel(false).1 };
        let alarms = Alarms::start(&core, datastore.root(), folder.path().join("alarms")).await;
        let listeners = Listeners { unix: bind_unix(&socket).unwrap(), web: Vec::new() };
        let router = super::router(Arc::new(Access::start(&core, &datastore, None).await), alarms, shown);
        tokio::spawn(serve(listeners, router, Duration::from_millis(50), pending()));
        let silent = UnixStream::connect(&socket).await.unwrap();
        let mut slow = UnixStream::connect(&socket).await.unwrap();
        slow.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost:").await.unwrap();
        for mut stream in [silent, slow] {
            let mut said = Vec::new();
            // Ends only where the server closes it.
            stream.read_to_end(&mut said).await.unwrap();
            assert!(!said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
        }
        Client::new(&datastore).status().await.unwrap();
        core.shutdown().await.unwrap();
    };
    runtime().unwrap().block_on(all);
}
