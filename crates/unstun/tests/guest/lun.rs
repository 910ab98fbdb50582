//! Persistent reservations on the kernel's own iSCSI target. The simulation has a model of such devices.

use crate::daemon::Datastore;
use crate::machine::Machine;
use crate::wire::{Ask, Reserved};

pub(crate) fn a_device_refuses_the_writes_of_a_host_that_lost_it() {
    let datastore = Datastore::new();
    let mut machine = Machine::start(&datastore, "none", 0);
    let found: Reserved = machine.ask(&Ask::Reserve);
    let refused = |error: &Option<String>| {
        error.as_ref().is_some_and(|error| error.contains("another host has reserved the device"))
    };
    assert!(refused(&found.beside_an_owner), "{found:?}");
    assert!(refused(&found.after_a_take_over), "{found:?}");
    assert!(found.a_reads && found.b_writes, "{found:?}");
    assert!(found.why_lost.contains("unstun on host b"), "{found:?}");
    assert_eq!(found.after_a_release, None, "{found:?}");
    assert!(found.reserves_again && found.is_off, "{found:?}");
    machine.power_off();
}
