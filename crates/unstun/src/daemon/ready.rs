//! Main function of the core's thread: it starts the reactor, opens the datastores, and serves requests until the stop.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use api::error::Result;
use api::listen::NbdListen;
use blk::Executor;
use blk::socket::Listener;
use blk::uring::UringReactor;
use export::nbd;
use futures_util::future::select;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{info, warn};

use crate::daemon::heartbeat::{Heartbeat, beat};
use crate::daemon::place::Place;
use crate::daemon::running::client::exports::Catalogue;
use crate::daemon::running::client::vhost_sockets::folder_beside;
use crate::daemon::state::Daemon;

/// Request to the core, which runs it on its thread as a separate task.
pub(crate) type Question = Box<dyn FnOnce(Rc<Daemon>) + Send>;

/// Runs until `Daemon::shut_down` has been answered, or until all senders of `inbox` are dropped.
pub(super) fn run(
    place: Place,
    heartbeat: Arc<Heartbeat>,
    mut inbox: UnboundedReceiver<Question>,
    tell: &Sender<Result<()>>,
) {
    let reactor = match UringReactor::new() {
        Ok(reactor) => Rc::new(reactor),
        Err(e) => return drop(tell.send(Err(e.into()))),
    };
    reactor.keep_in(crate::daemon::datastore::unflushed::folder(&place));
    let executor = Executor::new(reactor.clone());
    let env = executor.env();
    env.spawn_detached(Box::pin(beat(env.clone(), heartbeat)));
    let tell_ready = tell.clone();
    let ended = executor.run(async move {
        let opened = async {
            let daemon = Daemon::open(env, &place).await?;
            listen(&reactor, &daemon, &place)?;
            Ok(daemon)
        };
        let daemon = match opened.await {
            Ok(daemon) => daemon,
            Err(e) => return drop(tell_ready.send(Err(e))),
        };
        for notice in reactor.take_notices() {
            warn!("{notice}");
        }
        if tell_ready.send(Ok(())).is_err() {
            return;
        }
        daemon.env.spawn_detached(Box::pin(daemon.clone().keep_bins()));
        daemon.env.spawn_detached(Box::pin(daemon.clone().watch_hangs()));
        daemon.env.spawn_detached(Box::pin(daemon.running.clone().watch_slow()));
        let stopped = pin!(daemon.stopped());
        let answering = pin!(async {
            while let Some(question) = inbox.recv().await {
                question(daemon.clone());
            }
        });
        select(stopped, answering).await;
    });
    assert!(ended.is_some(), "the core's reactor ended while disks are served");
}

fn listen(reactor: &Rc<UringReactor>, daemon: &Rc<Daemon>, place: &Place) -> Result<()> {
    let exports = Rc::new(Catalogue::new(daemon.running.clone()));
    for address in &place.nbd {
        let (handle, shown) = match address {
            NbdListen::Unix(path) => {
                let path = path.to_string_lossy();
                (reactor.listen_unix(&path)?, format!("unix:{path}"))
            }
            NbdListen::Tcp(address) => {
                if !address.ip().is_loopback() {
                    warn!(
                        "NBD on {address}: every client that reaches this address can read and write every disk, without a password \
                         and in clear text; keep others out with a firewall, or serve on 127.0.0.1 behind a tunnel"
                    );
                }
                (reactor.listen_tcp(&address.to_string())?, address.to_string())
            }
        };
        info!("NBD is on {shown}");
        let listener = Listener::new(daemon.env.clone(), handle, shown);
        let served =
            nbd::serve(daemon.env.clone(), listener, exports.clone(), daemon.running.front_end.clone());
        daemon.track_front_end(daemon.env.spawn(served));
    }
    serve_vhost_user(reactor, daemon, place, exports)
}

/// Serves every running disk over vhost-user, on sockets beside that of NBD. Without them NBD is served all the same.
fn serve_vhost_user(
    reactor: &Rc<UringReactor>,
    daemon: &Rc<Daemon>,
    place: &Place,
    exports: Rc<Catalogue>,
) -> Result<()> {
    let unix = place.nbd.iter().find_map(|address| match address {
        NbdListen::Unix(path) => Some(path),
        NbdListen::Tcp(_) => None,
    });
    // vhost-user needs descriptors that only a Unix socket passes; a daemon for TCP alone serves none.
    let Some(folder) = unix.map(|path| folder_beside(path)) else { return Ok(()) };
    if let Err(error) = daemon.running.vhost.open(reactor.clone(), &folder, exports) {
        warn!("vhost-user is not served: {error}");
        return Ok(());
    }
    info!("vhost-user is on the sockets in {}", folder.display());
    daemon.running.all().iter().for_each(|vm| daemon.running.vhost.follow(vm));
    Ok(())
}
