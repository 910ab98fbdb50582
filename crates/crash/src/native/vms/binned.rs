//! Verbs of the user that put something into the bin and restore it. Every disk and every name must then be unchanged.

use std::rc::Rc;

use super::harness::Running;
use super::model::Outcome;
use super::shape::Shape;
use super::user::User;

impl User {
    pub(super) async fn revert_and_back(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let shape = self.shape(vm);
        let Some(to) = self.any_snapshot(shape.snapshots.keys().cloned()) else { return Ok(()) };
        let moved = self.on_medium_of(vm, &shape, &to);
        let restored = shape.restored_from(moved.shape.as_ref().expect("it stays"));
        let back = self.as_it_is(vm, &restored).await?;
        self.and_back(vm, vec![moved, back], vm.vm.revert(Some(&to), None, true), 0).await
    }

    pub(super) async fn discard_and_back(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let shape = self.shape(vm);
        let Some(wanted) = self.any_snapshot(shape.snapshots.keys().cloned()) else { return Ok(()) };
        let mut ahead = self.discarded(vm, &shape, &wanted);
        let binned = ahead.len() - 1;
        let last = ahead[binned].clone();
        // A restore brings back the names one by one, the earliest first, and then the disks.
        let mut returning = shape.with_later(&wanted);
        returning.sort_by_key(|name| name[1..].parse::<u64>().expect("s and a number"));
        let mut named = last.clone();
        for name in returning {
            let shape_now = named.shape.as_mut().expect("it stays");
            shape_now.snapshots.insert(name.clone(), shape.snapshots[&name].clone());
            ahead.push(named.clone());
        }
        if binned > 0 {
            let restored = shape.restored_from(last.shape.as_ref().expect("it stays"));
            ahead.push(self.as_it_is(vm, &restored).await?);
        }
        self.and_back(vm, ahead, vm.vm.discard(&wanted, true), binned).await
    }

    /// Carries out a verb that may lead to these outcomes, and restores what it has put into the bin. `binned` is the
    /// outcome in which the bin has all of it.
    async fn and_back<T>(
        &mut self,
        vm: &Rc<Running>,
        ahead: Vec<Outcome>,
        verb: impl Future<Output = blk::Result<T>>,
        binned: usize,
    ) -> Result<(), String> {
        let before = entries(vm);
        self.expect(vm, ahead);
        if let Err(e) = verb.await {
            return self.settle(vm, Err::<(), _>(e)).map(drop);
        }
        let new = entries(vm).into_iter().find(|id| !before.contains(id));
        let Some(id) = new else { return Err("nothing came into the bin".to_owned()) };
        self.harness.inner.env.sleep_us(self.rng.below(2000)).await;
        let keep = self.rng.coin();
        match vm.vm.restore(id, keep).await {
            Ok(_) => self.settle(vm, Ok(())).map(drop),
            Err(e) if e.is_no_space() => {
                self.harness.model.borrow_mut().arrive(&vm.name, Some(binned));
                Ok(())
            }
            Err(e) => Err(format!("restore: {e}")),
        }
    }

    /// Returns the outcome in which the disks show what they show now, in another shape.
    async fn as_it_is(&self, vm: &Rc<Running>, shape: &Shape) -> Result<Outcome, String> {
        let fixed = self.harness.contents(vm).await?;
        Ok(Outcome { fixed, ..self.ahead(vm, shape.clone()) })
    }

    pub(super) async fn empty_bin(&mut self, vm: &Rc<Running>, all: bool) -> Result<(), String> {
        let mut ids = entries(vm);
        if !all && self.rng.coin() {
            ids.truncate(1);
        }
        match vm.vm.empty_bin(&ids).await {
            Err(e) if !e.is_no_space() => Err(e.to_string()),
            _ => Ok(()),
        }
    }
}

fn entries(vm: &Running) -> Vec<u64> {
    vm.vm.state().bin.iter().map(|binned| binned.id).collect()
}
