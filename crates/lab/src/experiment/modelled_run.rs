//! An experiment on modelled storage, in virtual time.

use std::path::PathBuf;
use std::rc::Rc;

use blk::{Env, Local, Result};
use sim::{ContentMode, Options, SimWorld, Storage};

use super::memory::{self, Watch};
use super::{Column, Esx, Experiment, Format, frozen};
use crate::modelled::{self, Engine};
use crate::peers::{Kind, Setup};
use crate::run::{Clock, Constant, ConstantSource, End, Record};
use crate::runner::{Plan, RunObserver};
use crate::storage::StorageModel;
use crate::subject::Subject;
use crate::vmware;
use crate::vmware::rules::{Hypothesis, Rules, TableCache};
use crate::vmware::spec::{Adjust, FileOperation, Snapshots, Spec};

/// The software that keeps the disks and their snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// VMware as it was.
    Esx(Hypothesis),
    /// Our engine, or a flat file.
    Engine(Engine),
    /// The snapshots of another stack.
    Peer(Kind),
}

/// One run.
#[derive(Clone)]
pub struct ModelledRun {
    pub experiment: Experiment,
    pub stack: Stack,
    pub storage: StorageModel,
    /// Storage of the deltas, where they are not beside the disks.
    pub delta_storage: Option<StorageModel>,
    /// A change of VMware's side, to see which figures follow it.
    pub adjust: Option<Adjust>,
    pub seed: u64,
    /// What may differ between two VMs of another stack.
    pub setup: Setup,
    /// The command with which a user repeats the run.
    pub command: String,
    /// File that the run is written to while it is under way.
    pub path: Option<PathBuf>,
}

/// Part of the file names of VMware's deltas, and of ours.
const DELTA_NAMES: &str = "-delta";

impl Stack {
    pub fn name(self) -> &'static str {
        match self {
            Stack::Esx(_) => "esx",
            Stack::Engine(engine) => engine.name(),
            Stack::Peer(kind) => kind.name(),
        }
    }

    /// Returns the column of the results: the hypothesis, or the stack that takes VMware's place.
    pub fn column(self, experiment: &Experiment) -> Column<'static> {
        match self {
            Stack::Esx(hypothesis) => {
                Column { name: hypothesis.name(), default: self == experiment.own_stack() }
            }
            other => Column { name: other.name(), default: self == experiment.own_stack() },
        }
    }
}

impl Esx {
    /// Returns the frozen default of the release.
    pub fn hypothesis(&self) -> Hypothesis {
        match self.format {
            Format::SeSparse => Hypothesis::ConcurrentCached,
            _ => self.release.hypothesis(),
        }
    }
}

impl ModelledRun {
    /// Returns a run with the deltas beside the disks, and without a file of its own.
    pub fn new(experiment: Experiment, stack: Stack, storage: StorageModel, seed: u64) -> ModelledRun {
        let setup = experiment.peer.as_ref().map(|peer| Setup {
            request_ns: (peer.request_us * 1000.0) as u64,
            l2_cache_bytes: peer.l2_cache_bytes,
            unit_bytes: None,
        });
        ModelledRun {
            experiment,
            stack,
            storage,
            delta_storage: None,
            adjust: None,
            seed,
            setup: setup.unwrap_or_default(),
            command: String::new(),
            path: None,
        }
    }

    /// Runs the experiment to its end, or until the observer interrupts it. The record's rows are first one for each
    /// published cell, then the other measured figures. A stack that was measured with units of several sizes runs once
    /// for each; the record is that of the first, and each cell is of its own run.
    pub fn run(&self, observer: RunObserver) -> Record {
        let of_cell: Vec<Option<u64>> = match self.stack == self.experiment.own_stack() {
            true => self.experiment.published.iter().map(|cell| cell.unit_bytes).collect(),
            false => Vec::new(),
        };
        let mut units: Vec<Option<u64>> = Vec::new();
        for unit in of_cell.iter().filter(|unit| unit.is_some()) {
            if !units.contains(unit) {
                units.push(*unit);
            }
        }
        let mut records = units.iter().enumerate().map(|(n, unit)| {
            let setup = Setup { unit_bytes: *unit, ..self.setup };
            // The file is that of the record.
            let path = self.path.clone().filter(|_| n == 0);
            ModelledRun { setup, path, ..self.clone() }.run_once(observer.clone())
        });
        let Some(mut record) = records.next() else { return self.run_once(observer) };
        for (other, unit) in records.zip(&units[1..]) {
            if record.end == End::Complete {
                record.end = other.end;
            }
            let own = other.rows.into_iter().enumerate().take(of_cell.len());
            for (cell, row) in own.filter(|(cell, _)| of_cell[*cell] == *unit) {
                record.rows[cell] = row;
            }
        }
        record
    }

    fn run_once(&self, observer: RunObserver) -> Record {
        let (watch, observer) = Watch::over(observer, memory::available_bytes);
        let options = modelled::world_options(Options { storage: Some(self.placed()), ..Options::default() });
        let plan = Plan {
            head: self.head(),
            workload: self.experiment.workload(),
            protocol: self.experiment.protocol(),
            path: self.path.clone(),
        };
        let disks = self.experiment.scaled_disk_bytes();
        let mut record = match self.stack {
            Stack::Esx(hypothesis) => {
                // The model finds grains in memory, so the content of its files is never read.
                let options = Options { content: ContentMode::Absent, ..options };
                modelled::run(options, plan, observer, esx(self.spec(hypothesis))).record
            }
            Stack::Engine(Engine::Plain) => {
                let options = Options { content: ContentMode::Absent, ..options };
                modelled::run_engine(Engine::Plain, disks, options, plan, observer).record
            }
            Stack::Peer(kind) => {
                let options = Options { content: ContentMode::Absent, ..options };
                modelled::run(options, plan, observer, peer(kind, disks, self.setup)).record
            }
            Stack::Engine(engine) => modelled::run_engine(engine, disks, options, plan, observer).record,
        };
        if let Some(why) = watch.reason(memory::most_bytes(&self.experiment, self.stack)) {
            record.end = End::Failed(why);
        }
        let column = self.stack.column(&self.experiment);
        let published = self.experiment.rows(&record, column);
        let is_new = |row: &crate::run::Row| {
            !published.iter().any(|p| p.phase == row.phase && p.quantity == row.quantity)
        };
        let others: Vec<_> = record.rows.iter().filter(|row| is_new(row)).cloned().collect();
        record.rows = published.into_iter().chain(others).collect();
        record
    }

    /// Returns the setup of VMware's side, in the size that is simulated.
    fn spec(&self, hypothesis: Hypothesis) -> Spec {
        let esx = &self.experiment.esx;
        let mut spec = Spec::esx(esx.release, self.experiment.scaled_disk_bytes());
        let rules = hypothesis.rules();
        spec.rules = Rules {
            pieces_at_once: esx.committer_outstanding,
            journal_writes: esx.journal_writes.min(rules.journal_writes),
            read_filter: esx.read_filter,
            ..rules
        };
        spec.vmfs = !esx.nfs;
        spec.marks = esx.block_marks;
        // Every model has `calls`. Without them a file is opened at the cost of its directory.
        if let Ok(calls) = FileOperation::of(&self.storage) {
            spec.stun.file_operation = calls;
        }
        if let TableCache::Pages(pages) = spec.rules.table_cache {
            let divisor = u32::try_from(self.experiment.size_divisor()).unwrap_or(u32::MAX);
            spec.rules.table_cache = TableCache::Pages((pages / divisor).max(1));
        }
        spec.divide_times(u64::from(self.experiment.time_divisor()));
        spec.linked_clone = esx.linked_clone;
        match esx.format {
            Format::VmfsSparse => spec.format = vmware::Format::VmfsSparse,
            Format::SeSparse => spec.format = vmware::Format::SeSparse,
            Format::VVol => {
                let operation_us =
                    self.experiment.array_operation_us() / u64::from(self.experiment.time_divisor());
                spec.snapshots = Snapshots::Metadata { operation_us };
            }
        }
        if let Some(adjust) = self.adjust {
            adjust(&mut spec);
        }
        spec
    }

    /// Returns the ratio by which a change of VMware's side changes its number; None where the setup does not have it.
    pub fn ratio_of(&self, adjust: Adjust) -> Option<f64> {
        let Stack::Esx(hypothesis) = self.stack else { return None };
        adjust(&mut self.spec(hypothesis))
    }

    fn placed(&self) -> Storage {
        let names = match self.stack {
            Stack::Peer(kind) => kind.snapshot_names(),
            _ => Some(DELTA_NAMES),
        };
        match self.delta_storage.as_ref().zip(names) {
            Some((other, names)) => self.storage.with_delta_lun(other, names),
            None => self.storage.storage(),
        }
    }

    fn head(&self) -> Record {
        let hypothesis = match self.stack {
            Stack::Esx(hypothesis) => Some(hypothesis.name().to_string()),
            _ => None,
        };
        Record {
            hypothesis,
            model: frozen::state().to_string(),
            command: self.command.clone(),
            constants: self.constants(),
            left_out: self.left_out(),
            notes: self.notes(),
            time_scale: self.experiment.time_divisor(),
            ..self.experiment.head(self.stack.name(), &self.storage.name, Clock::Virtual, self.seed)
        }
    }

    /// Returns the constants of the storage and of VMware's side, and the experiment's declared inputs.
    fn constants(&self) -> Vec<Constant> {
        let mut constants = self.storage.constants().to_vec();
        match self.stack {
            Stack::Esx(hypothesis) => constants.extend(self.spec(hypothesis).constants()),
            Stack::Peer(kind) => {
                constants.extend(kind.constants(self.setup));
                constants.extend(self.request_constant());
            }
            Stack::Engine(_) => {}
        }
        constants.extend(self.experiment.declared());
        constants
    }

    fn request_constant(&self) -> Option<Constant> {
        (self.setup.request_ns > 0).then(|| Constant {
            name: "time of a request".into(),
            value: self.setup.request_ns as f64 / 1000.0,
            unit: "us".into(),
            source: ConstantSource::FittedToBaseline,
            note: "client, export and the stack's thread, for each request of the guest, one at a time"
                .into(),
        })
    }

    fn left_out(&self) -> Vec<String> {
        let mut left_out = self.storage.left_out.clone();
        match self.stack {
            Stack::Esx(_) => left_out.extend(vmware::LEFT_OUT.map(String::from)),
            Stack::Peer(kind) => left_out.extend(kind.left_out().iter().copied().map(String::from)),
            Stack::Engine(_) => {}
        }
        left_out
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.experiment.notes.clone();
        if let Some(scale) = &self.experiment.scale {
            notes.push(format!("Scaled: sizes by {}, times by {}: {}.", scale.size, scale.time, scale.note));
        }
        if let Stack::Esx(hypothesis) = self.stack {
            notes.push(format!("Hypothesis {hypothesis}: {}.", hypothesis.meaning()));
        }
        let most_mib = memory::most_bytes(&self.experiment, self.stack) >> 20;
        notes.push(format!(
            "Memory: {most_mib} MiB if the load writes all that it reaches in every snapshot, else less."
        ));
        notes
    }
}

/// Returns a function that creates the VM in a folder of the simulated world.
fn esx(spec: Spec) -> impl FnOnce(Env, SimWorld) -> Local<'static, Result<Rc<dyn Subject>>> {
    move |env, _world| {
        Box::pin(async move {
            let dir = env.open_root("/")?;
            let esx = vmware::Esx::create(env.clone(), dir.clone(), dir, spec).await?;
            Ok(Rc::new(esx) as Rc<dyn Subject>)
        })
    }
}

/// Returns a function that creates the VM of another stack in a simulated world.
fn peer(
    kind: Kind,
    disk_bytes: Vec<u64>,
    setup: Setup,
) -> impl FnOnce(Env, SimWorld) -> Local<'static, Result<Rc<dyn Subject>>> {
    move |env, _world| {
        Box::pin(async move { Ok(Rc::new(kind.create(&env, &disk_bytes, setup).await?) as Rc<dyn Subject>) })
    }
}
