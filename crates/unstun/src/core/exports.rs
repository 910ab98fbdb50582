//! The catalogue of the NBD door: `VM/diskN` for the running disk, `VM/diskN@SNAPSHOT` for a sealed state.

use std::rc::Rc;

use blk::volume::{Attachment, ExportEntry, Exports};
use blk::{Error, Local, Result};

use super::node::Node;

pub struct Catalogue {
    node: Rc<Node>,
}

impl Catalogue {
    pub fn new(node: Rc<Node>) -> Catalogue {
        Catalogue { node }
    }

    async fn attach_named(&self, name: &str, client: &str) -> Result<Attachment> {
        let (path, snapshot) = match name.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot)),
            None => (name, None),
        };
        let expected = || {
            let cause = format!("no export {name:?}: expected VM/diskN or VM/diskN@SNAPSHOT");
            Error::not_found("", cause)
        };
        let (vm, disk) = path.split_once("/disk").ok_or_else(expected)?;
        let number: u32 = disk.parse().map_err(|_| expected())?;
        let entry = self.node.entry(vm)?;
        let vm = &entry.vm;
        // Counted as a client before it stops counting as one on its way in.
        let _entering = entry.door.enter(&entry.name)?;
        let leaving = entry.door.leaving();
        match snapshot {
            Some(snapshot) => {
                let (volume, view) = vm.open_view(snapshot, number, client).await?;
                Ok(Attachment { volume, token: Box::new((view, leaving)) })
            }
            None => {
                let (volume, attached) = vm.attach(number, client).await?;
                self.node.take_notices(&entry);
                let guests = &entry.door.guests;
                let (switch, guest) = (guests.switch(number, volume), guests.enter(attached));
                Ok(Attachment { volume: switch, token: Box::new((guest, leaving)) })
            }
        }
    }
}

impl Exports for Catalogue {
    fn list(&self) -> Vec<ExportEntry> {
        let mut exports = Vec::new();
        for entry in self.node.entries() {
            let state = entry.vm.state();
            for disk in &state.disks {
                let name = format!("{}/disk{}", entry.name, disk.number);
                let description = format!("{} of {}, {} bytes", disk.slot, entry.name, disk.size_bytes);
                exports.push(ExportEntry { name, description });
            }
            for snapshot in state.snapshots.iter().filter(|s| entry.vm.is_sealed(s.id)) {
                for (number, _) in &snapshot.disks {
                    let name = format!("{}/disk{number}@{}", entry.name, snapshot.name);
                    exports
                        .push(ExportEntry { name, description: format!("sealed state {}", snapshot.name) });
                }
            }
        }
        exports
    }

    fn attach<'a>(&'a self, name: &'a str, client: &'a str) -> Local<'a, Result<Attachment>> {
        Box::pin(self.attach_named(name, client))
    }
}
