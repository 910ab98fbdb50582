//! Conversion of the engine's types to the API's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use api::error::{Error, ErrorBody};
use api::name::VmName;
use blk::file::FileCounters;
use blk::manifest::{DiskMode, LayerInfo, NewDisk, SnapshotState, VmState};
use engine::{DiskLayers, Event, EventKind, JobState};
use jiff::Timestamp;

use crate::daemon::datastore::Home;
use crate::daemon::datastore::hang::Hang;
use crate::daemon::running::client::export_name;
use crate::daemon::running::vm::{DiskView, VmView};
use crate::daemon::state::Daemon;
use crate::daemon::tracked::Tracked;
use crate::daemon::vm::registry::Idle;
use crate::daemon::vm::vm_record::{Kept, VmRecord};

/// Minimum time in nanoseconds between two measurements of a job's rate.
const RATE_WINDOW_NS: u64 = 500_000_000;

pub(crate) fn id(id: u128) -> String {
    format!("{id:032x}")
}

pub(crate) fn time(unix_us: i64) -> Timestamp {
    Timestamp::from_microsecond(unix_us).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Converts a VM's name. Names of served VMs were checked at creation; a folder renamed by hand may have any other
/// name.
pub(crate) fn vm_name(name: &str) -> VmName {
    name.parse().unwrap_or_else(|_| "unnamed".parse().expect("a sound name"))
}

pub(crate) fn operation(kind: EventKind) -> api::Operation {
    match kind {
        EventKind::Take => api::Operation::Take,
        EventKind::CommitStart => api::Operation::CommitStart,
        EventKind::Commit => api::Operation::Commit,
        EventKind::CommitCancelled => api::Operation::CommitCancelled,
        EventKind::CommitFailed => api::Operation::CommitFailed,
        EventKind::Revert => api::Operation::Revert,
        EventKind::Discard => api::Operation::Discard,
        EventKind::Reset => api::Operation::Reset,
        EventKind::Rename => api::Operation::Rename,
        EventKind::Restore => api::Operation::Restore,
        EventKind::BinEmptied => api::Operation::BinEmptied,
        EventKind::Defragment => api::Operation::Defragment,
        EventKind::Disks => api::Operation::Disks,
        EventKind::SpaceExhausted => api::Operation::SpaceExhausted,
        EventKind::SpaceReturned => api::Operation::SpaceReturned,
        EventKind::Recovered => api::Operation::Recovered,
        EventKind::WritesLost => api::Operation::WritesLost,
    }
}

pub(crate) fn event(id: u64, vm: &str, event: &Event) -> api::Event {
    let disks = event.disks.iter().map(|d| api::EventDisk {
        number: d.number,
        stun_us: d.stun_us,
        flush_us: d.drain_us + d.flush_us,
        bytes_moved: d.bytes,
    });
    api::Event {
        id,
        time: time(event.unix_us),
        vm: vm_name(vm),
        operation: operation(event.kind),
        snapshot: (!event.subject.is_empty()).then(|| event.subject.clone()),
        stun_us: event.stun_us,
        frozen_us: 0,
        disks: disks.collect(),
        message: (!event.message.is_empty()).then(|| event.message.clone()),
    }
}

/// Summarizes a VM that is not served. `native` is whether its folder marks its disks as native.
pub(crate) fn idle(Idle { name, home, cause }: Idle, native: Result<bool, Hang>) -> api::VmSummary {
    let Home { datastore, path: home } = home;
    let condition = if cause.is_some() { api::VmCondition::Broken } else { api::VmCondition::Closed };
    let hang = native.as_ref().err().map(Hang::found);
    api::VmSummary {
        name: vm_name(&name),
        condition,
        message: hang.or(cause),
        datastore: datastore.name.clone(),
        store: if native.unwrap_or(true) { api::Store::Native } else { api::Store::Redo },
        home,
        id: None,
        disks: None,
        size_bytes: None,
        allocated_bytes: None,
        snapshots: None,
        nbd_clients: 0,
        waiting_writes: 0,
        tags: Vec::new(),
        note: String::new(),
    }
}

/// Returns an event of the home itself: imported, cloned, opened.
pub(crate) fn home_event(entry: &VmRecord, message: &str) -> api::Event {
    api::Event {
        id: entry.next_event(),
        time: time(entry.datastore.dir.env().unix_us()),
        vm: vm_name(&entry.name),
        operation: api::Operation::Home,
        snapshot: None,
        stun_us: 0,
        frozen_us: 0,
        disks: Vec::new(),
        message: Some(message.to_owned()),
    }
}

/// Converts a job. `guest_latency_us` is that of its VM.
pub(crate) fn job(tracked: &Tracked, guest_latency_us: Option<u64>) -> api::Job {
    let job = &tracked.job;
    let now_ns = tracked.datastore.dir.env().now_ns();
    let state = match job.state() {
        JobState::Running => api::JobState::Running,
        JobState::WaitingForSpace => api::JobState::WaitingForSpace,
        JobState::Paused => api::JobState::Paused,
        JobState::Done => api::JobState::Done,
        JobState::Failed => api::JobState::Failed,
        JobState::Cancelled => api::JobState::Cancelled,
    };
    // The subject of a defragmentation is disks.
    let of_snapshots = job.operation != engine::job::DEFRAGMENT;
    let subjects = job.subject.split(", ").filter(|s| of_snapshots && !s.is_empty());
    let error = job.error().map(|e| ErrorBody::from(Error::from(e)).error);
    api::Job {
        id: tracked.id,
        operation: match job.operation {
            engine::job::CONSOLIDATE => api::Operation::Consolidate,
            engine::job::MOVE => api::Operation::Move,
            engine::job::SCRUB => api::Operation::Scrub,
            engine::job::LAND => api::Operation::Land,
            engine::job::VERIFY => api::Operation::Verify,
            engine::job::DEFRAGMENT => api::Operation::Defragment,
            _ => api::Operation::Commit,
        },
        vm: tracked.vm.as_deref().map(vm_name),
        datastore: tracked.datastore.name.clone(),
        snapshots: subjects.map(str::to_string).collect(),
        state,
        started: time(job.started_unix_us),
        ended: job.ended_unix_us().map(time),
        bytes: job_bytes(tracked),
        bytes_done: job.bytes_done.get(),
        bytes_total: job.bytes_total.get(),
        rate_bytes_s: if state == api::JobState::Running { rate(tracked, now_ns) } else { 0 },
        limit_bytes_s: Some(job.limit()).filter(|&l| l > 0),
        eta_s: job.eta_s(now_ns),
        guest_latency_us,
        defragmented: (!of_snapshots).then(|| defragmented(&job.defragmented())),
        error,
    }
}

fn defragmented(done: &engine::DefragmentOutcome) -> api::Defragmented {
    let engine::DefragmentOutcome { moved_bytes, shared_bytes, no_room_bytes, changed_bytes } = *done;
    api::Defragmented { moved_bytes, shared_bytes, no_room_bytes, changed_bytes }
}

pub(crate) fn job_bytes(tracked: &Tracked) -> api::JobBytes {
    match (tracked.job.operation, tracked.store) {
        (engine::job::MOVE | engine::job::LAND, _) => api::JobBytes::Copied,
        (engine::job::SCRUB | engine::job::VERIFY, _) => api::JobBytes::Read,
        (engine::job::DEFRAGMENT, _) => api::JobBytes::Scanned,
        (_, Some(api::Store::Native)) => api::JobBytes::GivenBack,
        _ => api::JobBytes::Moved,
    }
}

fn rate(tracked: &Tracked, now_ns: u64) -> u64 {
    let done = tracked.job.bytes_done.get();
    let (at_ns, then, last) = tracked.seen.get();
    let spent_ns = now_ns.saturating_sub(at_ns);
    if spent_ns < RATE_WINDOW_NS && last > 0 {
        return last;
    }
    let moved = u128::from(done.saturating_sub(then));
    let rate = (moved * 1_000_000_000 / u128::from(spent_ns.max(1))) as u64;
    if spent_ns >= RATE_WINDOW_NS {
        tracked.seen.set((now_ns, done, rate));
    }
    rate
}

pub(crate) fn disk(
    daemon: &Daemon,
    entry: &VmRecord,
    view: &VmView,
    listed: &DiskLayers,
) -> Option<api::Disk> {
    let state = &view.state;
    let disk = state.disks.iter().find(|d| d.number == listed.number)?;
    let export = export_name::lasting_name(&entry.name, disk.number, state.generation);
    let running = view.disks.iter().find(|d| d.number == disk.number);
    let counted = running.map(|d| d.layers.as_slice()).unwrap_or_default();
    let io_of = |l: &LayerInfo| counted.iter().find(|c| c.name == l.name).map(|c| layer_io(c.counters));
    Some(api::Disk {
        id: format!("{}-{}", id(state.id), disk.number),
        number: disk.number,
        slot: disk.slot.clone(),
        store: entry.kept.store(),
        mode: mode(disk.mode),
        size_bytes: disk.size_bytes,
        nbd_uri: daemon.uri(&export),
        vhost_user_socket: running.and_then(|disk| disk.vhost_user_socket.clone()),
        descriptor: layer_path(entry, &disk.top),
        layers: listed
            .layers
            .iter()
            .map(|l| api::Layer { io: io_of(l), ..layer(layer_path(entry, &l.name), state, &disk.top, l) })
            .collect(),
        source: source(daemon, entry, &disk.top),
        io: running.map(io).unwrap_or_default(),
    })
}

/// Returns the source below a disk, as long as its image is needed.
fn source(daemon: &Daemon, entry: &VmRecord, layer: &str) -> Option<api::Source> {
    let Kept::Native(vm) = &entry.kept else { return None };
    let below = vm.store.source_below(layer).filter(|source| !source.has_landed())?;
    daemon.show_source(&entry.datastore, &below)
}

fn io(disk: &DiskView) -> api::DiskIo {
    let device = disk.device;
    api::DiskIo {
        guest_reads: disk.reads,
        guest_writes: disk.writes,
        guest_flushes: disk.flushes,
        first_writes: disk.first_writes,
        map_loads: disk.map_loads,
        device_reads: device.reads,
        device_writes: device.writes,
        device_flushes: device.flushes,
        device_read_bytes: device.bytes_read,
        device_written_bytes: device.bytes_written,
        device_table_reads: device.table_reads,
        device_table_writes: device.table_writes,
    }
}

fn layer_io(counters: FileCounters) -> api::LayerIo {
    api::LayerIo {
        reads: counters.reads,
        writes: counters.writes,
        flushes: counters.flushes,
        read_bytes: counters.bytes_read,
        written_bytes: counters.bytes_written,
        table_reads: counters.table_reads,
        table_writes: counters.table_writes,
    }
}

pub(crate) fn mode(mode: DiskMode) -> api::DiskMode {
    match mode {
        DiskMode::Persistent => api::DiskMode::Persistent,
        DiskMode::IndependentPersistent => api::DiskMode::IndependentPersistent,
        DiskMode::IndependentNonpersistent => api::DiskMode::IndependentNonpersistent,
    }
}

pub(crate) fn new_disk(disk: &api::DiskCreate) -> NewDisk {
    let folder = disk.dir.as_ref().map(|dir| dir.to_string_lossy().into_owned());
    NewDisk { size_bytes: disk.size_bytes, mode: engine_mode(disk.mode), folder, source: None }
}

pub(crate) fn engine_mode(mode: api::DiskMode) -> DiskMode {
    match mode {
        api::DiskMode::Persistent => DiskMode::Persistent,
        api::DiskMode::IndependentPersistent => DiskMode::IndependentPersistent,
        api::DiskMode::IndependentNonpersistent => DiskMode::IndependentNonpersistent,
    }
}

/// Returns the path of a layer's content: its descriptor, or the store that contains all layers.
pub(crate) fn layer_path(entry: &VmRecord, name: &str) -> PathBuf {
    match entry.kept {
        Kept::Redo => entry.home.join(name),
        Kept::Native(_) => entry.datastore.native.path(),
    }
}

fn layer(descriptor: PathBuf, state: &VmState, top: &str, info: &LayerInfo) -> api::Layer {
    let owner = state.snapshots.iter().find(|s| s.disks.iter().any(|(_, layer)| *layer == info.name));
    api::Layer {
        descriptor,
        format: info.format.to_lowercase(),
        allocated_bytes: info.allocated_bytes,
        writable: info.name == top,
        foreign: info.foreign,
        snapshot: owner.map(|s| s.name.clone()),
        io: None,
    }
}

pub(crate) fn snapshots(
    view: &VmView,
    delta_bytes: &BTreeMap<u128, u64>,
    entry: &VmRecord,
) -> Vec<api::Snapshot> {
    let (state, labels, memory) = (&view.state, entry.labels.get(), entry.memory.borrow());
    let show = |s: &SnapshotState| api::Snapshot {
        id: id(s.id),
        name: s.name.clone(),
        parent: s.parent.map(id),
        created: time(s.created_unix_us),
        current: state.current == Some(s.id),
        sealed: view.sealed.contains(&s.id),
        message: s.description.clone(),
        created_by: labels.of_snapshot(s.id).map(|label| label.by.clone()),
        quiesced: labels.of_snapshot(s.id).is_some_and(|label| label.quiesced),
        memory_bytes: memory.get(&s.id).copied(),
        delta_bytes: delta_bytes.get(&s.id).copied().unwrap_or(0),
    };
    in_tree_order(state).into_iter().map(show).collect()
}

/// Orders snapshots with parents before children, and older siblings first. Snapshots in a circle of parents, in a
/// damaged home, are left out.
fn in_tree_order(state: &VmState) -> Vec<&SnapshotState> {
    let mut children: BTreeMap<Option<u128>, Vec<&SnapshotState>> = BTreeMap::new();
    for snapshot in &state.snapshots {
        children.entry(snapshot.parent).or_default().push(snapshot);
    }
    let mut ordered = Vec::with_capacity(state.snapshots.len());
    let mut open = children.remove(&None).unwrap_or_default();
    open.reverse();
    while let Some(snapshot) = open.pop() {
        ordered.push(snapshot);
        open.extend(children.remove(&Some(snapshot.id)).unwrap_or_default().into_iter().rev());
    }
    ordered
}
