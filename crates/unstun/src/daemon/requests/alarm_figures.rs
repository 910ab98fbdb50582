//! What the alarms look at. The core only copies figures; the rules are in `alarms/observe.rs`.

use std::collections::BTreeMap;

use api::error::Result;
use api::name::{DatastoreName, VmName};

use crate::daemon::datastore::asked;
use crate::daemon::requests::metrics::Metrics;
use crate::daemon::state::Daemon;

/// Figures of the snapshots of a VM.
#[derive(Debug, Clone, Default)]
pub(crate) struct SnapshotFigures {
    /// Name, and time in microseconds since 1970, of the oldest snapshot that no policy took.
    pub oldest: Option<(String, i64)>,
    /// Bytes that the snapshots keep; None while they are not known.
    pub bytes: Option<u64>,
}

pub(crate) struct AlarmFigures {
    pub metrics: Metrics,
    /// Of the open VMs, by name.
    pub snapshots: BTreeMap<String, SnapshotFigures>,
    /// Datastores whose store has failed, and why.
    pub failed: Vec<(DatastoreName, String)>,
    /// Why no policy runs.
    pub policies_fault: Option<String>,
    /// Guests that may have stayed frozen, with what is known of each.
    pub unthawed: BTreeMap<VmName, String>,
    /// Images below disks.
    pub sources: Vec<api::Source>,
    /// VMs that have another name since the last look: the old one, and the new one.
    pub renamed: Vec<(VmName, VmName)>,
}

impl Daemon {
    pub(crate) async fn alarm_figures(&self) -> Result<AlarmFigures> {
        let mut snapshots = BTreeMap::new();
        for entry in self.entries() {
            // Guests must not wait for the states of all VMs.
            self.env.next_turn().await;
            let mut figures = SnapshotFigures::default();
            if let Ok(state) = asked(&entry.datastore, entry.running.state()).await {
                let labels = entry.labels.get();
                let by_hand = state
                    .snapshots
                    .iter()
                    .filter(|s| labels.of_snapshot(s.id).is_none_or(|label| label.policy.is_none()));
                let oldest = by_hand.min_by_key(|s| s.created_unix_us);
                figures.oldest = oldest.map(|s| (s.name.clone(), s.created_unix_us));
            }
            if let Ok(Ok(bytes)) = asked(&entry.datastore, entry.running.delta_bytes()).await {
                figures.bytes = Some(api::units::total(bytes.into_values()));
            }
            snapshots.insert(entry.name.clone(), figures);
        }
        let broken = |datastore: &std::rc::Rc<crate::daemon::datastore::Datastore>| {
            let cause = datastore.native.opened()?.broken()?;
            Some((datastore.name.clone(), cause.to_string()))
        };
        let failed = self.datastores().iter().filter_map(broken).collect();
        let policies_fault = self.policies.fault();
        let unthawed = self.unthawed_guests().await;
        let metrics = self.metrics().await?;
        let renamed = self.renamed.take();
        let sources = self.source_list();
        Ok(AlarmFigures { metrics, snapshots, failed, policies_fault, unthawed, sources, renamed })
    }
}
