//! Jobs of all VMs under one numbering, since each VM numbers its own.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use engine::JobControl;

use crate::daemon::datastore::Datastore;
use crate::daemon::vm::vm_record::VmRecord;

/// Job under the daemon's own number.
pub(super) struct Tracked {
    pub id: u64,
    /// Datastore of the job; for a move, the source.
    pub datastore: Rc<Datastore>,
    /// Name of the job's VM; None for work on the whole store. The job keeps no record of the VM, whose files would stay
    /// open after a move.
    pub vm: Option<String>,
    /// Store of the VM when the job began.
    pub store: Option<api::Store>,
    pub job: Arc<JobControl>,
    /// Time, bytes done and rate at the last measurement of the rate.
    pub seen: Cell<(u64, u64, u64)>,
}

impl Tracked {
    pub(super) fn new(
        id: u64,
        datastore: &Rc<Datastore>,
        entry: Option<&Rc<VmRecord>>,
        job: &Arc<JobControl>,
    ) -> Tracked {
        let seen = Cell::new((job.started_ns, 0, 0));
        let (vm, store) = entry.map(|entry| (entry.name.clone(), entry.kept.store())).unzip();
        Tracked { id, datastore: datastore.clone(), vm, store, job: job.clone(), seen }
    }
}
