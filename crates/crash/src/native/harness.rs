//! One boot of a store: its file, its running machines, and the items that the store keeps about them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Env, File};
use engine::native::change::{Key, Op};
use engine::native::layout::{BLOCK, HEADER_BLOCKS};
use engine::native::stored::USER_KINDS;
use engine::native::superblock::Superblock;
use engine::native::{NativeDisk, Store};

use super::model::{Contents, ExpectedDisk, NativeRun};
use super::plan::{Medium, Plan};
use super::second_core::SecondCore;
use super::windows::Windows;
use crate::content::{Image, read_pieces};
use crate::flush_faults::FlushFaults;
use crate::request_gate::RequestGate;

pub(super) const FILE: &str = "store";
/// Kinds of items: the nodes of a machine's disks, and those of a snapshot.
pub(super) const MACHINE: u8 = USER_KINDS + 100;
pub(super) const SNAPSHOT: u8 = USER_KINDS + 101;
/// Longest single read while a disk is read whole, in bytes.
const READ_BYTES: u64 = 256 << 10;

/// A machine that runs in this boot.
pub struct RunningMachine {
    pub number: u64,
    pub gate: RequestGate,
    pub disks: RefCell<Vec<Rc<NativeDisk>>>,
}

pub struct Harness {
    pub run: NativeRun,
    pub env: Env,
    pub store: Rc<Store>,
    pub boot: u64,
    pub running: RefCell<BTreeMap<u64, Rc<RunningMachine>>>,
    /// Failing flushes during the work of this boot.
    pub faults: FlushFaults,
    second_core: Option<SecondCore>,
}

impl Deref for Harness {
    type Target = NativeRun;

    fn deref(&self) -> &NativeRun {
        &self.run
    }
}

pub(super) fn key(kind: u8, number: u64) -> Key {
    Key { kind, major: 0, minor: number }
}

pub(super) fn put(kind: u8, number: u64, nodes: &[u64]) -> Op {
    Op::Put { key: key(kind, number), value: nodes.iter().flat_map(|node| node.to_le_bytes()).collect() }
}

fn nodes_of(value: &[u8]) -> Vec<u64> {
    let words = value.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// Makes the store's file durable, with a journal that begins where the plan says.
pub(super) async fn format(env: &Env, plan: &Plan) -> blk::Result<()> {
    let dir = env.open_root("/")?;
    let file = dir.create_new(FILE).await?;
    dir.sync().await?;
    if let Medium::Device(blocks) = plan.medium {
        file.allocate(0, (HEADER_BLOCKS + plan.layout.journal_pages + blocks) * BLOCK).await?;
    }
    Store::format(env, &file, plan.layout).await?;
    let mut superblock = Superblock::read(&file).await?.newest;
    superblock.journal.seq = plan.journal_from;
    superblock.write(&file).await?;
    file.flush().await
}

pub(super) async fn open_file(env: &Env) -> blk::Result<File> {
    env.open_root("/")?.open(FILE, OpenMode::Write).await
}

pub(super) async fn open_store(env: &Env, plan: &Plan) -> blk::Result<Rc<Store>> {
    let can_grow = !matches!(plan.medium, Medium::Device(_));
    Store::open(env.clone(), open_file(env).await?, plan.options, plan.growth, can_grow).await
}

impl Harness {
    pub async fn open(env: &Env, run: &NativeRun, boot: u64) -> blk::Result<Rc<Harness>> {
        let store = open_store(env, &run.plan).await?;
        run.model.borrow().images.attach(env, &store)?;
        let second_core = run.guests_core.env.borrow().as_ref().map(|core| SecondCore::start(env, core));
        Ok(Rc::new(Harness {
            run: run.clone(),
            env: env.clone(),
            store,
            boot,
            running: RefCell::default(),
            faults: FlushFaults::none(&run.world),
            second_core,
        }))
    }

    /// Returns a running disk as its guests see it.
    pub fn volume(&self, disk: &Rc<NativeDisk>) -> Rc<dyn Volume> {
        match &self.second_core {
            None => disk.clone(),
            Some(core) => core.volume(disk),
        }
    }

    /// Returns what the store keeps: the nodes of every machine, or of every snapshot.
    pub fn items(&self, kind: u8) -> BTreeMap<u64, Vec<u64>> {
        let items = self.store.items(kind);
        items.into_iter().map(|(key, value)| (key.minor, nodes_of(&value))).collect()
    }

    pub fn disk(&self, node: u64, number: usize) -> blk::Result<Rc<NativeDisk>> {
        let node = self.store.node(node)?;
        let name = format!("disk{number} (node {})", node.id);
        Ok(NativeDisk::new(&self.store, node, name, number as u32, self.plan.terms))
    }

    /// Starts a machine's disks as the model has them.
    pub fn start(&self, number: u64) -> blk::Result<()> {
        let disks = self.disks_of(number)?;
        let machine = RunningMachine { number, gate: RequestGate::default(), disks: RefCell::new(disks) };
        self.running.borrow_mut().insert(number, Rc::new(machine));
        Ok(())
    }

    pub fn disks_of(&self, number: u64) -> blk::Result<Vec<Rc<NativeDisk>>> {
        let model = self.model.borrow();
        let disks = model.machines[&number].disks.iter().enumerate();
        disks.map(|(n, disk)| self.disk(disk.node, n)).collect()
    }

    /// Returns the disks of all running machines, with what is expected of them.
    pub fn running_disks(&self) -> Vec<(Rc<NativeDisk>, ExpectedDisk)> {
        let (running, model) = (self.running.borrow(), self.model.borrow());
        let of = |machine: &Rc<RunningMachine>| {
            let expected = model.machines[&machine.number].disks.clone();
            machine.disks.borrow().clone().into_iter().zip(expected)
        };
        running.values().flat_map(of).collect()
    }

    pub fn machine(&self, number: u64) -> Rc<RunningMachine> {
        self.running.borrow()[&number].clone()
    }

    pub fn mark(&self, label: &'static str) {
        self.world.mark(label);
    }

    /// Reads all disks of a machine or a snapshot.
    pub async fn read_nodes(&self, nodes: &[u64], windows: &[Windows]) -> Result<Contents, String> {
        let mut contents = Vec::new();
        for (n, (node, windows)) in nodes.iter().zip(windows).enumerate() {
            let disk = self.disk(*node, n).map_err(|e| e.to_string())?;
            contents.push(read_all(&disk, windows).await?);
        }
        Ok(contents)
    }
}

/// Reads the windows of a disk, one after the other.
pub(super) async fn read_all(disk: &Rc<NativeDisk>, windows: &Windows) -> Result<Image, String> {
    if disk.size_bytes() != windows.size_blocks * BLOCK {
        let (found, expected) = (disk.size_bytes() / BLOCK, windows.size_blocks);
        return Err(format!("{} has {found} blocks, expected {expected}", disk.name));
    }
    let mut bytes = Vec::new();
    for window in windows.windows() {
        let read = read_pieces(disk, window, READ_BYTES, |_, piece| bytes.extend_from_slice(piece));
        read.await.map_err(|e| format!("{}: {e}", disk.name))?;
    }
    Ok(Rc::new(bytes))
}

/// Checks that nothing is mapped outside the windows, where nothing was ever written.
pub(super) async fn nothing_else_is_mapped(disk: &Rc<NativeDisk>, windows: &Windows) -> Result<(), String> {
    let status = disk.clone().status(0..disk.size_bytes()).await;
    let mut at = 0;
    for part in status.map_err(|e| format!("status of {}: {e}", disk.name))? {
        let end = at + part.len;
        let inside = windows.windows().any(|w| at < w.end && w.start < end);
        // A mapped range may span windows that touch, and holes may be anywhere.
        let covered: u64 = windows.windows().map(|w| w.end.min(end).saturating_sub(w.start.max(at))).sum();
        if !part.hole && (!inside || covered < part.len) {
            return Err(format!("{}: bytes {at}..{end} have space and were never written", disk.name));
        }
        at = end;
    }
    Ok(())
}
