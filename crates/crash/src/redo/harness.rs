//! One boot of the VM: the open VM, and what its guests and its user share.

use std::ops::Deref;
use std::rc::Rc;

use blk::Env;
use engine::Vm;
use vmdk::home::Home;

use super::model::{RedoRun, SnapshotStatus};
use crate::content::{difference, look};
use crate::flush_faults::FlushFaults;
use crate::request_gate::RequestGate;

pub(super) struct Harness {
    pub run: RedoRun,
    pub boot: u64,
    pub vm: Rc<Vm>,
    pub home: Rc<Home>,
    pub gate: RequestGate,
    /// Failing flushes during the work of this boot.
    pub faults: FlushFaults,
}

impl Deref for Harness {
    type Target = RedoRun;

    fn deref(&self) -> &RedoRun {
        &self.run
    }
}

impl Harness {
    pub(super) async fn open(
        env: &Env,
        run: &RedoRun,
        boot: u64,
        home: Rc<Home>,
    ) -> blk::Result<Rc<Harness>> {
        let vm = Vm::open(env.clone(), home.clone(), run.plan.engine).await?;
        let (run, faults) = (run.clone(), FlushFaults::none(&run.world));
        Ok(Rc::new(Harness { run, boot, vm, home, gate: RequestGate::default(), faults }))
    }

    /// Reads every disk of a snapshot. The first look at a sealed snapshot is compared with the model and remembered;
    /// later ones are compared with the first. After a boot, a snapshot whose take was cut is sealed, and one whose
    /// commit was cut before its start was durable has not changed. Returns false if the snapshot cannot be opened,
    /// because another task has committed it meanwhile.
    pub(super) async fn look(&self, name: &str) -> Result<bool, String> {
        let first = self.model.borrow_mut().known(name).and_then(|known| known.status.contents());
        let persistent = self.model.borrow().persistent;
        let numbers: Vec<u32> = self.vm.disks()[..persistent].iter().map(|disk| disk.number).collect();
        let Some(seen) = look(&*self.vm, name, &numbers, first.as_deref()).await? else { return Ok(false) };
        let mut model = self.model.borrow_mut();
        let Some(status) = model.known(name).map(|k| k.status.clone()) else { return Ok(true) };
        if let Some(first) = status.contents().filter(|first| *first != seen) {
            return Err(format!("sealed snapshot {name} changed: {}", difference(&first, &seen)));
        }
        for (n, (disk, bytes)) in model.models.iter().zip(&seen).enumerate() {
            let checked = match &status {
                SnapshotStatus::Taking(began) => disk.check_snapshot(bytes, began[n], None),
                SnapshotStatus::Sealed { began, ended, contents: None } => {
                    disk.check_snapshot(bytes, began[n], Some(ended[n]))
                }
                _ => Ok(()),
            };
            checked.map_err(|e| format!("{name}: {e}"))?;
        }
        match status {
            SnapshotStatus::Taking(began) => model.seal(name, began, Some(seen)),
            SnapshotStatus::Committing(_) => model.seal(name, vec![0; numbers.len()], Some(seen)),
            SnapshotStatus::Sealed { began, ended, .. } => {
                model.known(name).expect("known").status =
                    SnapshotStatus::Sealed { began, ended, contents: Some(seen) };
            }
            SnapshotStatus::Gone => {}
        }
        Ok(true)
    }
}
