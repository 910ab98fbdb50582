//! Main function of the core's thread: it starts the reactor, opens the datastores, and serves requests until the stop.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use api::Store;
use api::error::Result;
use api::listen::NbdListen;
use blk::Executor;
use blk::socket::Listener;
use blk::uring::UringReactor;
use export::nbd;
use futures_util::future::select;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{info, warn};

use crate::daemon::cores::core_thread;
use crate::daemon::heartbeat::{Heartbeat, beat};
use crate::daemon::place::Place;
use crate::daemon::running::client::exports::Catalogue;
use crate::daemon::running::client::vhost_sockets::{VhostSockets, folder_beside};
use crate::daemon::running::messages;
use crate::daemon::state::Daemon;

/// Request to the core, which runs it on its thread as a separate task.
pub(crate) type Question = Box<dyn FnOnce(Rc<Daemon>) + Send>;

/// Runs until `Daemon::shut_down` has been answered, or until all senders of `inbox` are dropped.
pub(super) fn run(
    place: Place,
    heartbeats: Vec<Arc<Heartbeat>>,
    mut inbox: UnboundedReceiver<Question>,
    tell: &Sender<Result<()>>,
) {
    let open_files = Arc::default();
    let reactor = match core_thread::reactor(&place, &open_files) {
        Ok(reactor) => reactor,
        Err(e) => return drop(tell.send(Err(e))),
    };
    let (control, messages) = messages::channel();
    let (own, others) = heartbeats.split_first().expect("a heartbeat for each core");
    let cores = match core_thread::start_all(&place, others, &control, &open_files) {
        Ok(cores) => cores,
        Err(e) => return drop(tell.send(Err(e))),
    };
    let executor = Executor::new(reactor.clone());
    let env = executor.env();
    env.spawn_detached(Box::pin(beat(env.clone(), own.clone())));
    let tell_ready = tell.clone();
    let ended = executor.run(async move {
        let opened = async {
            let daemon = Daemon::open(env, &place, control, messages, cores).await?;
            daemon.running.vhost.listen_on(reactor.clone());
            listen(&reactor, &daemon, &place)?;
            serve_vhost_user(&daemon, &place).await;
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
        daemon.env.spawn_detached(Box::pin(daemon.clone().run_policies()));
        daemon.env.spawn_detached(Box::pin(daemon.clone().back_up_by_policies()));
        for store in [Store::Native, Store::Redo] {
            daemon.env.spawn_detached(Box::pin(daemon.clone().remove_by_policies(store)));
        }
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
    let exports = Catalogue::route(&daemon.running);
    for address in &place.nbd {
        let mut tls = None;
        let (handle, shown) = match address {
            NbdListen::Unix(path) => {
                let path = path.to_string_lossy();
                (reactor.listen_unix(&path)?, format!("unix:{path}"))
            }
            NbdListen::Tcp(tcp) => {
                if address.is_remote() {
                    warn!(
                        "NBD on {tcp}: every client that reaches this address can read and write every disk, without a password \
                         and in clear text; keep others out with a firewall, or serve on 127.0.0.1 behind a tunnel"
                    );
                }
                (reactor.listen_tcp(&tcp.to_string())?, tcp.to_string())
            }
            NbdListen::Tls(tcp) => {
                tls.clone_from(&place.nbd_tls);
                (reactor.listen_tcp(&tcp.to_string())?, format!("{tcp} with TLS"))
            }
        };
        info!("NBD is on {shown}");
        let listener = Listener::new(daemon.env.clone(), handle, shown);
        let (env, front_end) = (daemon.env.clone(), daemon.running.front_end.clone());
        let served = nbd::serve(env, listener, exports.clone(), front_end, tls);
        daemon.track_front_end(daemon.env.spawn(served));
    }
    Ok(())
}

/// Serves every running disk over vhost-user, on sockets beside that of NBD. Without them NBD is served all the same.
async fn serve_vhost_user(daemon: &Rc<Daemon>, place: &Place) {
    let unix = place.nbd.iter().find_map(|address| match address {
        NbdListen::Unix(path) => Some(path),
        NbdListen::Tcp(_) | NbdListen::Tls(_) => None,
    });
    // vhost-user needs descriptors that only a Unix socket passes; a daemon for TCP alone serves none.
    let Some(folder) = unix.map(|path| folder_beside(path)) else { return };
    if let Err(error) = VhostSockets::prepare(&folder) {
        return warn!("vhost-user is not served: {error}");
    }
    info!("vhost-user is on the sockets in {}", folder.display());
    daemon.cores.serve_vhost_user(&folder).await;
}
