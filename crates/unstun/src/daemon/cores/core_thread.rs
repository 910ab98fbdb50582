//! A core beside the control side's: its thread, its reactor, and the loop that carries out the control side's work.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;

use api::error::{Error, Result};
use blk::Executor;
use blk::uring::UringReactor;
use engine::native::{StoreEnd, VmEnd, connect};
use tokio::sync::mpsc;
use tracing::warn;

use crate::daemon::cores::StartedCore;
use crate::daemon::datastore::unflushed;
use crate::daemon::heartbeat::{Heartbeat, beat};
use crate::daemon::place::Place;
use crate::daemon::running::client::exports::Catalogue;
use crate::daemon::running::client::front_end::front_end;
use crate::daemon::running::descriptors::Descriptors;
use crate::daemon::running::messages::ControlSide;
use crate::daemon::running::running_vms::{CoreNumber, CoreTask, RunningVms};

/// What a core starts with.
struct CoreStart {
    core: CoreNumber,
    place: Place,
    heartbeat: Arc<Heartbeat>,
    control: ControlSide,
    /// Count of the open descriptors of all cores.
    open_files: Arc<AtomicU64>,
    /// This core's end of the connection with the core of the stores.
    vm_end: VmEnd,
}

/// Starts the cores beside the control side's own, one for each of `heartbeats`.
pub(crate) fn start_all(
    place: &Place,
    heartbeats: &[Arc<Heartbeat>],
    control: &ControlSide,
    open_files: &Arc<AtomicU64>,
) -> Result<Vec<StartedCore>> {
    let start_one = |(at, heartbeat): (usize, &Arc<Heartbeat>)| {
        let (store_end, vm_end) = connect();
        let core = CoreStart {
            core: CoreNumber { own: at + 1, count: place.cores },
            place: place.clone(),
            heartbeat: heartbeat.clone(),
            control: control.clone(),
            open_files: open_files.clone(),
            vm_end,
        };
        start(core, store_end)
    };
    heartbeats.iter().enumerate().map(start_one).collect()
}

/// Starts the thread of a core. Returns once the core carries out work.
fn start(start: CoreStart, store_end: StoreEnd) -> Result<StartedCore> {
    let (sender, inbox) = mpsc::unbounded_channel::<CoreTask>();
    let (tell, told) = std::sync::mpsc::channel();
    let number = start.core.own;
    let own = sender.downgrade();
    let thread = std::thread::Builder::new()
        .name(format!("core{number}"))
        .spawn(move || run(start, own, inbox, &tell))
        .map_err(|e| Error::failed(format!("starting the thread of core{number}: {e}")))?;
    told.recv().map_err(|_| Error::failed(format!("core{number} ended before it was ready")))??;
    Ok(StartedCore { inbox: sender, thread, store_end })
}

/// Makes the reactor of a core, which shares the process's limits with the others.
pub(crate) fn reactor(place: &Place, open_files: &Arc<AtomicU64>) -> Result<Rc<UringReactor>> {
    let reactor = Rc::new(UringReactor::new()?);
    reactor.count_files_in(open_files.clone());
    reactor.keep_in(unflushed::folder(place).for_one_of(place.cores));
    place.memory.share_caches(place.cores);
    Ok(reactor)
}

fn run(
    start: CoreStart,
    own: mpsc::WeakUnboundedSender<CoreTask>,
    mut inbox: mpsc::UnboundedReceiver<CoreTask>,
    tell: &Sender<Result<()>>,
) {
    let CoreStart { core, place, heartbeat, control, open_files, vm_end } = start;
    let reactor = match reactor(&place, &open_files) {
        Ok(reactor) => reactor,
        Err(e) => return drop(tell.send(Err(e))),
    };
    let executor = Executor::new(reactor.clone());
    let env = executor.env();
    env.spawn_detached(Box::pin(beat(env.clone(), heartbeat)));
    let tell_ready = tell.clone();
    let ended = executor.run(async move {
        let descriptors = Descriptors::new(env.clone(), place.memory);
        let front_end =
            front_end(place.memory, descriptors.connections(), (core.own, core.count), &place.activity);
        let running = RunningVms::new(core, env.clone(), front_end, control, descriptors, Some(own));
        running.serve_native_vms(vm_end, place.memory.grant_bytes(core.count));
        running.vhost.listen_on(reactor.clone());
        Catalogue::route(&running);
        env.spawn_detached(Box::pin(running.clone().watch_slow()));
        let watched = running.clone();
        env.spawn_detached(Box::pin(async move { watched.folders.watch(&watched.env).await }));
        if tell_ready.send(Ok(())).is_err() {
            return;
        }
        while !running.has_ended() {
            let Some(work) = inbox.recv().await else { return };
            work(&running);
            for notice in reactor.take_notices() {
                warn!("{notice}");
            }
        }
    });
    assert!(ended.is_some(), "the core's reactor ended while disks are served");
}
