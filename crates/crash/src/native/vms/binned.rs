//! Verbs of the user that put something into the bin and restore it: every disk and every name is then as it was.

use std::rc::Rc;

use engine::Loss;

use super::harness::Running;
use super::model::Outcome;
use super::shape::Shape;
use super::user::User;

impl User {
    pub(super) async fn revert_and_back(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let shape = self.shape(vm);
        let Some(to) = self.any_snapshot(shape.snapshots.keys().cloned().collect()) else { return Ok(()) };
        let moved = self.on_ground_of(vm, &shape, &to);
        let restored = shape.restored_from(moved.shape.as_ref().expect("it stays"));
        let back = self.as_it_is(vm, &restored).await?;
        self.expect(vm, vec![moved.clone(), back]);
        let entries = entries(vm);
        let result = vm.vm.revert(Some(&to), None, true).await.map(drop);
        self.and_back(vm, result, &entries, 0).await
    }

    pub(super) async fn discard_and_back(&mut self, vm: &Rc<Running>) -> Result<(), String> {
        let shape = self.shape(vm);
        let on_way = shape.running_names();
        let Some(wanted) = self.any_snapshot(shape.snapshots.keys().cloned().collect()) else {
            return Ok(());
        };
        let gone = shape.with_later(&wanted);
        let mut last = self.ahead(vm, shape.clone());
        let mut ahead = Vec::new();
        if on_way.contains(&wanted) {
            last = self.on_ground_of(vm, &shape, &wanted);
            last.shape.as_mut().expect("it stays").current = shape.snapshots[&wanted].parent.clone();
            ahead.push(last.clone());
        }
        last.shape.as_mut().expect("it stays").snapshots.retain(|name, _| !gone.contains(name));
        ahead.push(last.clone());
        let thrown = ahead.len() - 1;
        // A restore brings back the names one by one, the earliest first, and then the disks.
        let mut returning = gone.clone();
        returning.sort_by_key(|name| name[1..].parse::<u64>().expect("s and a number"));
        let mut named = last.clone();
        for name in returning {
            let shape_now = named.shape.as_mut().expect("it stays");
            shape_now.snapshots.insert(name.clone(), shape.snapshots[&name].clone());
            ahead.push(named.clone());
        }
        if on_way.contains(&wanted) {
            let restored = shape.restored_from(last.shape.as_ref().expect("it stays"));
            ahead.push(self.as_it_is(vm, &restored).await?);
        }
        self.expect(vm, ahead);
        let entries = entries(vm);
        let result = vm.vm.discard(&wanted, true).await.map(|_: Loss| ());
        self.and_back(vm, result, &entries, thrown).await
    }

    /// Restores what the verb has put into the bin. `thrown` is the outcome in which the bin has all of it.
    async fn and_back(
        &mut self,
        vm: &Rc<Running>,
        result: blk::Result<()>,
        before: &[u64],
        thrown: usize,
    ) -> Result<(), String> {
        if result.is_err() {
            return self.settle(vm, result).map(drop);
        }
        let new = entries(vm).into_iter().find(|id| !before.contains(id));
        let Some(id) = new else { return Err("nothing came into the bin".to_owned()) };
        self.harness.env.sleep_us(self.rng.below(2000)).await;
        let keep = self.rng.coin();
        match vm.vm.restore(id, keep).await {
            Ok(_) => self.settle(vm, Ok(())).map(drop),
            Err(e) if e.is_no_space() => {
                self.harness.model.borrow_mut().arrive(&vm.name, Some(thrown));
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
