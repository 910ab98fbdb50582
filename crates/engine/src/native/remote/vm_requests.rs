//! Requests about VMs whose clients are on another core.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use blk::Result;

use super::super::vm::NativeVm;
use super::link::{Answer, AttachedThere, VmWork, closed};
use super::served_vm::{ServedVm, VmTicket, now_of};
use super::store_side::StoreSide;

impl StoreSide {
    /// Lets the other core serve a VM's disks. The VM's operations stay on this core.
    pub fn serve_vm(&self, vm: Rc<NativeVm>) -> VmTicket {
        let number = self.new_number();
        let ticket = VmTicket { number, name: vm.name.clone(), now: now_of(&vm) };
        let served = ServedVm { vm, disks: RefCell::default(), clients: RefCell::default() };
        self.vms.borrow_mut().insert(number, Rc::new(served));
        ticket
    }

    /// Begins a request about a VM. What has no answer is carried out at once.
    pub(super) fn begin_vm(self: &Rc<Self>, number: u64, id: u32, work: VmWork) {
        let Some(served) = self.vms.borrow().get(&number).cloned() else {
            if !matches!(work, VmWork::Close | VmWork::Leave(_)) {
                self.answer(number, id, Answer::Done(Err(closed())));
            }
            return;
        };
        match work {
            VmWork::Close => drop(self.vms.borrow_mut().remove(&number)),
            VmWork::Leave(guard) => {
                let left = served.clients.borrow_mut().remove(&guard);
                drop(left);
            }
            VmWork::State => self.answer(number, id, Answer::Vm(now_of(&served.vm))),
            VmWork::Attach { number: disk, client } => {
                let side = self.clone();
                self.env.spawn_detached(Box::pin(async move {
                    let attached = served.attach(&side, disk, &client).await;
                    let answer = Answer::Attached(Box::new((now_of(&served.vm), attached)));
                    side.answer(number, id, answer);
                }));
            }
            VmWork::OpenView { snapshot, number: disk, client } => {
                let attached = served.open_view(self, &snapshot, disk, &client);
                self.answer(number, id, Answer::Attached(Box::new((now_of(&served.vm), attached))));
            }
        }
    }
}

impl ServedVm {
    async fn attach(&self, side: &StoreSide, number: u32, client: &str) -> Result<AttachedThere> {
        let (_, attached) = self.vm.attach(number, client).await?;
        let disk = self.vm.disk(number)?;
        let known = self
            .disks
            .borrow()
            .get(&number)
            .filter(|(known, _)| Rc::ptr_eq(known, &disk))
            .map(|known| known.1);
        let (number_there, ticket) = match known.filter(|there| side.has(*there)) {
            Some(there) => (there, None),
            None => {
                let ticket = side.serve(disk.clone())?;
                self.disks.borrow_mut().insert(number, (disk, ticket.number));
                (ticket.number, Some(ticket))
            }
        };
        let guard = self.keep(side, attached);
        Ok(AttachedThere { disk: number_there, ticket, snapshot: 0, guard })
    }

    fn open_view(
        &self,
        side: &StoreSide,
        snapshot: &str,
        number: u32,
        client: &str,
    ) -> Result<AttachedThere> {
        let (disk, view) = self.vm.open_sealed(snapshot, number, client)?;
        let ticket = side.serve(disk)?;
        let snapshot = view.snapshot;
        let guard = self.keep(side, view);
        Ok(AttachedThere { disk: ticket.number, ticket: Some(ticket), snapshot, guard })
    }

    fn keep(&self, side: &StoreSide, client: impl Any) -> u64 {
        let guard = side.new_number();
        self.clients.borrow_mut().insert(guard, Box::new(client));
        guard
    }
}
