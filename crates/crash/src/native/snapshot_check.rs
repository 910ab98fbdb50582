//! Checks of sealed snapshots: compares the first read with the model, and later reads with the first.

use super::harness::Harness;
use super::model::{Contents, Existence};
use crate::content::difference;

impl Harness {
    /// Reads every disk of a snapshot, which is sealed or whose take was cut, compares it, and returns what it shows.
    pub async fn look(&self, number: u64) -> Result<Contents, String> {
        let (nodes, windows) = self.model.borrow().snapshot(number);
        let seen = self.read_nodes(&nodes, &windows).await;
        let seen = seen.map_err(|e| format!("snapshot {number}: {e}"))?;
        let mut model = self.model.borrow_mut();
        let snapshot = &model.snapshots[&number];
        if let Some(first) = &snapshot.contents {
            if *first != seen {
                return Err(format!("sealed snapshot {number} changed: {}", difference(first, &seen)));
            }
            return Ok(seen);
        }
        let machine = &model.machines[&snapshot.machine];
        for (n, (disk, bytes)) in machine.disks.iter().zip(seen.iter()).enumerate() {
            let ended = (snapshot.existence != Existence::Making).then(|| snapshot.ended[n]);
            let checked = disk.model.check_snapshot(bytes, snapshot.began[n], ended);
            checked.map_err(|e| format!("snapshot {number} of machine {}: {e}", snapshot.machine))?;
        }
        model.snapshots.get_mut(&number).expect("looked at").contents = Some(seen.clone());
        Ok(seen)
    }

    /// Reads the machine's snapshots before its models are reset: a first read could not be checked afterwards.
    pub async fn look_at_all_of(&self, machine: u64) -> Result<(), String> {
        let unseen: Vec<u64> = {
            let model = self.model.borrow();
            let of_it = model.snapshots.iter().filter(|(_, s)| s.machine == machine && s.contents.is_none());
            of_it.filter(|(_, s)| s.existence == Existence::There).map(|(number, _)| *number).collect()
        };
        for number in unseen {
            self.look(number).await?;
        }
        Ok(())
    }
}
