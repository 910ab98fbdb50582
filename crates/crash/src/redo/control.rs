//! The user: takes, looks, commits, pauses and cancels while the guests run.

use std::cell::RefCell;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, ErrorKind, SECTOR};
use engine::job::COMMIT;
use engine::{CommitWhat, Disk, Job, JobState, Vm};
use sim::{Rng, SimWorld};
use vmdk::home::Home;

use super::model::{Image, Known, Model, Standing};
use super::plan::Plan;
use crate::request_gate::RequestGate;
use crate::trouble::Trouble;
use crate::watch::{chains, tell};

pub struct Control {
    pub vm: Rc<Vm>,
    pub model: Rc<RefCell<Model>>,
    pub rng: Rng,
    pub gate: Rc<RequestGate>,
    pub home: Rc<Home>,
    pub world: SimWorld,
    pub trouble: Trouble,
}

impl Control {
    pub async fn run(mut self, plan: &Plan) -> Result<(), String> {
        for _ in 0..plan.control_steps {
            self.vm.env.sleep_us(self.rng.below(3000)).await;
            if let Err(e) = self.step(plan).await {
                self.trouble.excuse(Err(e))?;
                // The next boot finds what the verb has left undone, stopped guests among it.
                self.trouble.end_boot(&self.vm.env).await;
            }
        }
        Ok(())
    }

    async fn step(&mut self, plan: &Plan) -> Result<(), String> {
        self.home.set_grain(plan.grain(&mut self.rng));
        if self.rng.chance(plan.moves) {
            match self.rng.below(6) {
                0 => self.discard().await?,
                1 if plan.nonpersistent_bytes.is_some() => self.reset().await?,
                2 | 3 if !self.model.borrow().bin.is_empty() => self.restore().await?,
                4 if self.rng.coin() => self.empty_bin().await?,
                _ => self.revert().await?,
            }
        } else if self.rng.chance(plan.clones) {
            self.clone_something(plan).await?;
        } else if self.rng.chance(plan.commits) {
            self.commit_something().await?;
        } else {
            self.take(plan.looks_at_once).await?;
        }
        if self.rng.below(3) == 0 { self.look_at_one().await } else { Ok(()) }
    }

    async fn take(&mut self, looks: bool) -> Result<(), String> {
        let (name, began) = self.begin_take();
        tell(|| format!("take {name} begins"));
        let result = self.vm.take(&name, "").await;
        tell(|| format!("take {name} ends {:?}", result.as_ref().map(|s| s.disks.clone())));
        if !self.took(&name, began, result)? {
            return Ok(());
        }
        // This first look lets the next one show any write that still reaches a state reported as sealed.
        if looks || self.rng.below(4) == 0 { look(&self.vm, &self.model, &name).await } else { Ok(()) }
    }

    /// Notes that a take begins. Returns its new name, and the ticks at which it is called.
    pub fn begin_take(&self) -> (String, Vec<u64>) {
        let mut model = self.model.borrow_mut();
        let name = format!("s{}", model.next_name);
        model.next_name += 1;
        let began = model.ticks();
        model.snapshots.push(Known { name: name.clone(), standing: Standing::Taking(began.clone()) });
        model.taking = true;
        (name, began)
    }

    pub fn marks(&self, label: &'static str) {
        self.world.mark(label);
    }

    pub fn sealed_names(&self) -> Vec<String> {
        let model = self.model.borrow();
        let sealed = model.snapshots.iter().filter(|k| matches!(k.standing, Standing::Sealed { .. }));
        sealed.map(|k| k.name.clone()).collect()
    }

    pub fn any_sealed(&mut self) -> Option<String> {
        let names = self.sealed_names();
        self.rng.pick(&names).cloned()
    }

    /// Notes the result of a take. Returns false if there was no space and so nothing was changed.
    fn took<T>(&self, name: &str, began: Vec<u64>, result: blk::Result<T>) -> Result<bool, String> {
        let mut model = self.model.borrow_mut();
        model.taking = false;
        match result {
            Ok(_) => {
                let ended = model.ticks();
                let known = model.known(name).expect("known since the take began");
                known.standing = Standing::Sealed { began, ended, contents: None };
                Ok(true)
            }
            Err(e) if e.is_no_space() => {
                model.snapshots.retain(|k| k.name != name);
                Ok(false)
            }
            Err(e) => Err(format!("take {name}: {e}")),
        }
    }

    /// Reads a sealed snapshot whole: compares the first look with the model, later ones with the first look.
    async fn look_at_one(&mut self) -> Result<(), String> {
        match self.any_sealed() {
            Some(name) => look(&self.vm, &self.model, &name).await,
            None => Ok(()),
        }
    }

    async fn commit_something(&mut self) -> Result<(), String> {
        let names: Vec<String> = self.vm.state().snapshots.iter().map(|s| s.name.clone()).collect();
        let what = match self.rng.pick(&names) {
            _ if self.rng.below(8) == 0 => CommitWhat::Unowned,
            Some(_) if self.rng.below(4) == 0 => CommitWhat::All,
            Some(name) => CommitWhat::One(name.clone()),
            None if self.rng.coin() => CommitWhat::All,
            None => return Ok(()),
        };
        let Ok(preview) = self.vm.commit_preview(&what).await else { return Ok(()) };
        let gone = preview.names;
        self.evicting(&preview.evicted, true);
        let side = |name: &String| {
            let state = self.vm.state();
            state.snapshots.iter().any(|s| s.name == *name && !engine::tree::is_running(&state, s.id))
        };
        if gone.iter().any(side) && preview.layers > 0 {
            self.marks("folded on a side branch");
        }
        if !preview.stays.is_empty() {
            self.marks("only a name went");
        }
        self.model.borrow_mut().leaving(&gone);
        self.model.borrow_mut().folding = true;
        tell(|| format!("commit {what:?} of {:?}; {:?}", chains(&self.vm), self.vm.state()));
        let committed = self.vm.commit(&what).await;
        tell(|| format!("committing: {:?}; {:?}", committed.as_ref().map(|j| j.id), self.vm.state().folds));
        let job = match committed {
            Ok(job) => job,
            Err(e) if e.kind == ErrorKind::Refused || e.is_no_space() => {
                self.model.borrow_mut().staying(&gone);
                self.evicting(&preview.evicted, false);
                return Ok(());
            }
            Err(e) => return Err(format!("commit {what:?}: {e}")),
        };
        if !preview.evicted.is_empty() {
            self.marks("a commit evicted what the bin kept");
        }
        self.see_bin()?;
        if preview.layers > 0 && self.has_large_grains_below() {
            self.marks("committed in a chain with grains larger than a sector below its top");
        }
        self.model.borrow_mut().gone(&gone);
        self.meddle(&job).await;
        Ok(())
    }

    /// Returns whether a delta that a commit may write into has a grain larger than a sector.
    fn has_large_grains_below(&self) -> bool {
        self.vm.disks().iter().any(|disk| {
            let chain = disk.chain();
            let below = chain.links.iter().rev().skip(1).map(|link| link.layer.shape());
            below.filter(|shape| !shape.flat).any(|shape| shape.grain_bytes > SECTOR)
        })
    }

    /// Leaves the job alone, waits for it, pauses it for a while, or cancels it.
    async fn meddle(&mut self, job: &engine::Job) {
        match self.rng.below(6) {
            0 => {
                self.vm.env.sleep_us(self.rng.below(2000)).await;
                let _ = job.cancel();
                tell(|| format!("cancel job {}", job.id));
            }
            1 => {
                let _ = job.pause();
                self.vm.env.sleep_us(self.rng.below(2000)).await;
                let _ = job.resume();
            }
            2 => {
                job.wait().await;
            }
            _ => {}
        }
    }
}

impl Model {
    pub fn leaving(&mut self, names: &[String]) {
        for known in self.snapshots.iter_mut().filter(|k| names.contains(&k.name)) {
            let contents = match &known.standing {
                Standing::Sealed { contents, .. } => contents.clone(),
                _ => None,
            };
            known.standing = Standing::Committing(contents);
        }
    }

    pub fn staying(&mut self, names: &[String]) {
        let now = self.ticks();
        for known in self.snapshots.iter_mut().filter(|k| names.contains(&k.name)) {
            if let Standing::Committing(contents) = &known.standing {
                // Without a first look only the seal is certain: the first look may then show any content up to now.
                let began = vec![0; now.len()];
                known.standing = Standing::Sealed { began, ended: now.clone(), contents: contents.clone() };
            }
        }
    }

    pub fn gone(&mut self, names: &[String]) {
        for known in self.snapshots.iter_mut().filter(|k| names.contains(&k.name)) {
            known.standing = Standing::Gone;
        }
    }
}

/// Reads every disk of a sealed snapshot. The first look is compared with the model and remembered; later ones are
/// compared with the first.
pub async fn look(vm: &Rc<Vm>, model: &Rc<RefCell<Model>>, name: &str) -> Result<(), String> {
    let persistent = model.borrow().persistent;
    let first = match model.borrow_mut().known(name).map(|known| &known.standing) {
        Some(Standing::Sealed { contents, .. }) => contents.clone(),
        _ => None,
    };
    let mut seen = Vec::new();
    for index in 0..persistent {
        let number = vm.disks()[index].number;
        let opened = vm.open_view(name, number, "oracle").await;
        let (disk, _view) = match opened {
            Ok(opened) => opened,
            // Another task has committed it meanwhile.
            Err(e) if e.kind == ErrorKind::NotFound || e.kind == ErrorKind::Refused => return Ok(()),
            Err(e) => return Err(format!("opening snapshot {name}: {e}")),
        };
        match &first {
            Some(first)
                if shows(&disk, &first[index]).await.map_err(|e| format!("snapshot {name}: {e}"))? =>
            {
                seen.push(first[index].clone());
            }
            _ => seen.push(read_all(&disk).await.map_err(|e| format!("snapshot {name}: {e}"))?),
        }
    }
    let mut model = model.borrow_mut();
    let standing = model.known(name).map(|k| k.standing.clone());
    match standing {
        Some(Standing::Sealed { contents: Some(first), .. }) if first != seen => {
            Err(format!("sealed snapshot {name} changed: {}", difference(&first, &seen)))
        }
        Some(Standing::Sealed { began, ended, contents: None }) => {
            for (index, bytes) in seen.iter().enumerate() {
                model.models[index]
                    .check_snapshot(bytes, began[index], ended[index])
                    .map_err(|e| format!("{name}: {e}"))?;
            }
            model.known(name).expect("known").standing =
                Standing::Sealed { began, ended, contents: Some(seen) };
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns whether the disk shows exactly `expected`.
async fn shows(disk: &Rc<Disk>, expected: &Image) -> Result<bool, String> {
    let mut same = disk.size_bytes() == expected.len() as u64;
    read_pieces(disk, |at, piece| same = same && expected[at..][..piece.len()] == *piece).await?;
    Ok(same)
}

pub fn difference(first: &[Image], seen: &[Image]) -> String {
    for (disk, (a, b)) in first.iter().zip(seen).enumerate() {
        let at = a.chunks(512).zip(b.chunks(512)).position(|(a, b)| a != b);
        if let Some(sector) = at {
            let was = sim::oracle::sequence_of(&a[sector * 512..][..512], disk as u32, sector as u64);
            let is = sim::oracle::sequence_of(&b[sector * 512..][..512], disk as u32, sector as u64);
            return format!("disk {disk} sector {sector} showed {was:?} and shows {is:?}");
        }
    }
    "sizes differ".into()
}

pub async fn read_all(disk: &Rc<Disk>) -> Result<Image, String> {
    let mut bytes = Vec::with_capacity(disk.size_bytes() as usize);
    read_pieces(disk, |_, piece| bytes.extend_from_slice(piece)).await?;
    Ok(Rc::new(bytes))
}

async fn read_pieces(disk: &Rc<Disk>, mut each: impl FnMut(usize, &[u8])) -> Result<(), String> {
    let mut at = 0;
    while at < disk.size_bytes() {
        let len = (disk.size_bytes() - at).min(1 << 20) as usize;
        let (buf, result) = disk.clone().read(at, Buf::alloc(len)).await;
        result.map_err(|e| format!("reading {len} bytes at {at}: {e}"))?;
        each(at as usize, &buf);
        at += len as u64;
    }
    Ok(())
}

/// Returns whether a resumed commit was refused because of a clone. A clone can be made after a commit failed for
/// another reason, and the resume of that commit is then refused. A new commit has a subject, and checks for clones
/// before its job begins.
fn met_a_clone(job: &Job) -> bool {
    let resumed = job.operation == COMMIT && job.subject.is_empty();
    let error = job.error.borrow();
    let refused = |e: &blk::Error| e.kind == ErrorKind::Refused && e.cause.contains("is read by /clone");
    resumed && error.as_ref().is_some_and(refused)
}

/// Resumes paused jobs, and waits until every job is over.
pub async fn settle(vm: &Rc<Vm>) -> Result<(), String> {
    for job in vm.jobs() {
        if job.state() == JobState::Paused {
            let _ = job.resume();
        }
        if job.wait().await == JobState::Failed && !met_a_clone(&job) {
            return Err(format!("job {} failed: {:?}", job.id, job.error.borrow()));
        }
    }
    Ok(())
}
