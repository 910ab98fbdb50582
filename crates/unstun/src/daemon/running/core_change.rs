//! A VM changes its core under its clients: the connections stay on the core where they began, and their requests are
//! relayed to the VM's new core.

use std::pin::pin;
use std::rc::Rc;

use blk::Error;
use blk::socket::Peer;
use blk::volume::{Attachment, Volume};
use engine::Client;
use engine::native::RelayTicket;
use futures_util::future::{Either, join_all, select};

use crate::daemon::running::client::client_gate::Shut;
use crate::daemon::running::client::client_volume::ClientVolume;
use crate::daemon::running::client::export_name::lasting_name;
use crate::daemon::running::client::switchable_volume::Access;
use crate::daemon::running::client::writers::DiskClient;
use crate::daemon::running::running_vms::RunningVms;
use crate::daemon::running::vm::RunningVm;

/// Maximum time in microseconds for which the requests of clients are held back before the VM leaves its core: those
/// under way end first. Where a file system does not answer, the VM stays.
const DRAINED_WITHIN_US: u64 = 5_000_000;

/// A client of a running disk on its way from one core to another.
pub(crate) struct MovedClient {
    number: u32,
    peer: Peer,
    access: Access,
    /// Whether it is a client of the vhost-user front end.
    is_vhost_user: bool,
}

/// Holds back the requests of a VM's clients. Its drop lets those go on that have not been relayed.
pub(crate) struct HeldClients {
    connections: Vec<Rc<ClientVolume>>,
    _shut: Shut,
}

impl Drop for HeldClients {
    fn drop(&mut self) {
        self.connections.iter().for_each(|connection| connection.release());
    }
}

impl RunningVms {
    /// Returns the volume of a new connection to a running disk.
    pub(crate) fn connect(
        &self,
        vm: &RunningVm,
        volume: Rc<dyn Volume>,
        attached: Rc<Client>,
        peer: &Peer,
    ) -> Rc<ClientVolume> {
        let (guests, number) = (&vm.gate.guests, attached.disk);
        let client = DiskClient {
            vm: vm.name.clone(),
            disk: format!("{}/disk{number}", vm.name),
            gate: vm.gate.clone(),
            guest: guests.enter(attached, peer),
            control: self.control.clone(),
        };
        let connection = ClientVolume::new(self.env.clone(), guests.switch(number, volume), Rc::new(client));
        vm.connections.add(&connection);
        connection
    }

    /// Holds back the requests of all clients of running disks, and waits for those under way. Nothing counts the clients
    /// any more when this returns.
    pub(crate) async fn hold_clients(&self, vm: &RunningVm) -> blk::Result<(Vec<MovedClient>, HeldClients)> {
        let shut = vm.gate.shut_behind().await;
        let held = HeldClients { connections: vm.connections.all(), _shut: shut };
        let drained = pin!(join_all(held.connections.iter().map(|connection| connection.hold())));
        if let Either::Right(_) = select(drained, pin!(self.env.sleep_us(DRAINED_WITHIN_US))).await {
            let cause = format!(
                "some requests of its clients have not ended for {} s, and the VM cannot leave core {} before they \
                 have; nothing was changed; try again",
                DRAINED_WITHIN_US / 1_000_000,
                self.core.own
            );
            return Err(Error::refused(format!("VM {}", vm.name), cause));
        }
        let moved = held.connections.iter().map(|connection| self.moved(vm, connection)).collect();
        held.connections.iter().for_each(|connection| connection.client().guest.end_count());
        Ok((moved, held))
    }

    fn moved(&self, vm: &RunningVm, connection: &ClientVolume) -> MovedClient {
        let guest = &connection.client().guest;
        let export = lasting_name(&vm.name, guest.number, vm.machine.generation());
        let sessions = self.vhost.front_end.sessions();
        let is_this = |peer: &str, of: &str| peer == guest.peer.name && of == export;
        let is_vhost_user = sessions.iter().any(|session| is_this(&session.peer, &session.export));
        let (number, peer, access) = (guest.number, guest.peer.clone(), guest.access.get());
        MovedClient { number, peer, access, is_vhost_user }
    }

    /// Attaches a client whose connection stays on another core.
    pub(crate) async fn attach_moved(&self, vm: &RunningVm, moved: MovedClient) -> blk::Result<Attachment> {
        let MovedClient { number, peer, access, is_vhost_user } = moved;
        let leaving = vm.gate.leaving();
        let (volume, attached) = vm.machine.attach(number, &peer.name).await?;
        let connection = self.connect(vm, volume, attached, &peer);
        let guest = connection.client().guest.clone();
        guest.access.set(access);
        let export = lasting_name(&vm.name, number, vm.machine.generation());
        let elsewhere = is_vhost_user.then(|| self.vhost.front_end.note_elsewhere(&export, &peer));
        Ok(Attachment { volume: connection, changes: None, token: Box::new((guest, leaving, elsewhere)) })
    }

    /// Relays the requests of a VM's held clients to their volumes on the VM's new core. `tickets` are in the order of
    /// `hold_clients`.
    pub(crate) fn relay_clients(&self, vm: &RunningVm, tickets: Vec<RelayTicket>) {
        let connections = vm.connections.all();
        assert_eq!(connections.len(), tickets.len(), "the held clients have stayed");
        for (connection, ticket) in connections.iter().zip(tickets) {
            let relayed = self.vm_side().open_relayed(ticket, &connection.client().disk);
            connection.relay_to(relayed);
        }
    }
}
