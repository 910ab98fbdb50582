//! The steps by which a VM of another core comes to the control side's under its clients
//! (`running/core_change.rs`).

use std::rc::Rc;

use crate::daemon::cores::CoreLink;
use crate::daemon::cores::vm_handle::{Guard, VmHandle};
use crate::daemon::running::client::client_gate::Who;
use crate::daemon::running::core_change::MovedClient;
use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::running::vm::RunningVm;

impl VmHandle {
    /// Holds back the requests of all clients of running disks until the guard is dropped, or the clients are relayed.
    pub(crate) async fn hold_clients(&self) -> blk::Result<(Vec<MovedClient>, Guard)> {
        let hold = async |running: Rc<RunningVms>, vm: Rc<RunningVm>| {
            let (clients, held) = running.hold_clients(&vm).await?;
            Ok::<_, blk::Error>((clients, running.kept.keep(held)))
        };
        let (clients, number) = self.run(hold).await?;
        Ok((clients, self.guard(number)))
    }

    /// Ends the VM's service under its name, and returns when it has ended.
    pub(crate) async fn end_service(&self) {
        self.run(async |running, vm| running.unserve(&vm)).await;
    }

    /// Attaches clients, whose connections stay on their core, to this handle's VM. `before` is the VM's earlier handle.
    pub(crate) async fn take_clients(&self, before: &VmHandle, clients: Vec<MovedClient>) -> blk::Result<()> {
        let (vm, running) = (self.own().expect("moved here"), self.core.own().expect("the VM is here"));
        let side = before.core.store_side().expect("the VM was on another core");
        let mut tickets = Vec::with_capacity(clients.len());
        for client in clients {
            tickets.push(side.relay(running.attach_moved(vm, client).await?));
        }
        before.run(async move |running, vm| running.relay_clients(&vm, tickets)).await;
        self.relaying.replace(Some(before.core.clone()));
        Ok(())
    }

    /// Closes the connections of clients that could not be relayed.
    pub(crate) async fn cut_clients(&self) {
        self.run(async |running, vm| running.cut(&vm.name, Who::All)).await;
    }

    pub(super) fn relaying(&self) -> Option<Rc<CoreLink>> {
        self.relaying.borrow().clone()
    }

    /// Takes over what another handle of this VM knows of its clients.
    pub(crate) fn continue_for(&self, before: &VmHandle) {
        self.relaying.replace(before.relaying());
    }
}
