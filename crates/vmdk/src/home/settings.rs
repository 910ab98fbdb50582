//! Settings of a home, and facts for its notices: the folder of its deltas, and files that VMware left.

use blk::Result;

use super::Home;
use super::survey::Survey;

impl Home {
    /// Returns the number of snapshots with VMware's state of the machine (.vmsn).
    pub async fn machine_states(&self) -> Result<u64> {
        let _turn = self.turn.lock().await;
        let (_, texts) = self.texts(&Survey::new(&self.folders)).await?;
        let snapshots = texts.vmsd.list().snapshots.iter();
        let with_state =
            snapshots.filter(|snapshot| snapshot.other("filename").is_some_and(|name| !name.is_empty()));
        Ok(with_state.count() as u64)
    }

    /// Returns the folder of deltas as the .vmx writes it; None if deltas are beside their parents.
    pub async fn snapshot_folder(&self) -> Result<Option<String>> {
        let _turn = self.turn.lock().await;
        let (_, texts) = self.texts(&Survey::new(&self.folders)).await?;
        Ok(texts.vmx.snapshot_folder()?.map(str::to_owned))
    }

    /// Sets the folder of deltas that are created from now on; it must be one of the home's own. None: beside their
    /// parents. Durable when the call returns. VMware needs both keys: `workingDir` alone moves swap and state, not the
    /// deltas.
    pub async fn set_snapshot_folder(&self, folder: Option<&str>) -> Result<()> {
        let _turn = self.turn.lock().await;
        let (files, mut texts) = self.texts(&Survey::new(&self.folders)).await?;
        let place = format!("{}: workingDir", texts.vmx.values().file());
        let values = texts.vmx.values_mut();
        match folder {
            Some(written) => {
                let path = self.folders.own_folder(&place, written).await?.path;
                values.set("workingDir", &path);
                values.set("snapshot.redoNotWithParent", "TRUE");
            }
            None => {
                values.remove("workingDir");
                values.remove("snapshot.redoNotWithParent");
            }
        }
        self.replace(&files.vmx, texts.vmx.to_bytes()).await
    }
}
