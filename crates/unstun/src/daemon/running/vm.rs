//! A VM that a core runs, and the clients of its disks and sealed states.

use std::rc::Rc;

use api::{ClientAccess, VmClient};
use engine::Machine;
use export::Limiter;

use crate::daemon::running::client::client_gate::{ClientGate, Who};

pub(crate) struct RunningVm {
    /// Name of the VM in the daemon; the first part of its exports' names.
    pub name: String,
    pub machine: Rc<dyn Machine>,
    pub gate: Rc<ClientGate>,
    /// Delays the requests of all clients when the VM has reached its limits. A move keeps it.
    pub limiter: Rc<Limiter>,
}

impl RunningVm {
    pub(crate) fn client_count(&self) -> u64 {
        (self.machine.clients().len() + self.machine.viewers().len()) as u64
    }

    pub(crate) fn present(&self, who: Who) -> Vec<VmClient> {
        let mut clients = self.writers();
        if who == Who::All {
            clients.extend(self.readers());
        }
        clients
    }

    /// Returns the clients that may write to the VM's running disks, or that read a disk while another client writes
    /// it.
    pub(crate) fn writers(&self) -> Vec<VmClient> {
        let clients = self.machine.clients().into_iter();
        let shown = |(disk, client): (u32, String)| {
            let access = self.gate.guests.access(disk, &client).shown();
            VmClient { disk: Some(disk), snapshot: None, client, access }
        };
        clients.map(shown).collect()
    }

    /// Returns the clients that read the VM's sealed states.
    pub(crate) fn readers(&self) -> Vec<VmClient> {
        let state = self.machine.state();
        let name = |id: u128| state.snapshots.iter().find(|s| s.id == id).map(|s| s.name.clone());
        let viewers = self.machine.viewers().into_iter();
        viewers
            .map(|(id, client)| VmClient {
                disk: None,
                snapshot: Some(name(id).unwrap_or_else(|| format!("{id:032x}"))),
                client,
                access: ClientAccess::ReadOnly,
            })
            .collect()
    }
}
