//! Answers of operations in time: one that needs a datastore that hangs is refused, or goes on without its caller.

use std::rc::Rc;

use api::error::Result;
use api::name::{DatastoreName, VmName};
use blk::Dir;

use crate::daemon::datastore::Datastore;
use crate::daemon::datastore::hang::{Hang, or_go_on};
use crate::daemon::state::Daemon;

/// Objects whose answer an operation needs.
#[derive(Debug, Clone)]
pub(crate) enum Subject {
    /// Nothing that may hang, or the operation handles hangs itself.
    None,
    /// A datastore; None is the main one.
    Datastore(Option<DatastoreName>),
    Vm(VmName),
    /// A VM and the datastore that it moves to; None is its own.
    VmTo(VmName, Option<DatastoreName>),
    /// Entries of the bin, by id or VM, in one datastore or in all.
    Bin(Option<DatastoreName>, Vec<String>),
    Job(u64),
    /// An added datastore, and the main one, which records it.
    Added(DatastoreName),
}

impl Subject {
    /// Returns a name for the log.
    fn shown(&self) -> String {
        match self {
            Subject::Vm(vm) | Subject::VmTo(vm, _) => format!("VM {vm}"),
            Subject::Datastore(Some(name)) | Subject::Bin(Some(name), _) | Subject::Added(name) => {
                format!("datastore {name}")
            }
            Subject::Datastore(None) => "the main datastore".to_owned(),
            Subject::Bin(None, _) => "the bin".to_owned(),
            Subject::Job(id) => format!("job {id}"),
            Subject::None => "a question".to_owned(),
        }
    }
}

/// Datastores, and folders outside them, whose calls are watched.
#[derive(Default)]
struct Watched {
    datastores: Vec<Rc<Datastore>>,
    folders: Vec<(DatastoreName, Dir)>,
}

impl Watched {
    fn hang(&self) -> Option<Hang> {
        let folder = |(name, dir): &(DatastoreName, Dir)| Hang::of(name, dir.env(), dir.pending());
        let datastores = self.datastores.iter().filter_map(|datastore| datastore.hang());
        datastores.chain(self.folders.iter().filter_map(folder)).max_by_key(|hang| hang.for_s)
    }
}

impl Daemon {
    /// Runs an operation and answers in time. The operation is refused before it begins if something it needs hangs. If
    /// that hangs later, the operation continues without its caller.
    pub(crate) async fn answer<T: 'static>(
        self: &Rc<Self>,
        subject: Subject,
        work: impl Future<Output = Result<T>> + 'static,
    ) -> Result<T> {
        let watched = self.watched(&subject);
        // A request to end a job is admitted even if the datastore hangs.
        let may_begin = matches!(subject, Subject::Job(_));
        if let Some(hang) = watched.hang().filter(|_| !may_begin) {
            return Err(hang.refusal());
        }
        let what = subject.shown();
        let answered = or_go_on(&self.env, what, || watched.hang(), work).await;
        answered.unwrap_or_else(|hang| Err(hang.left_under_way()))
    }

    fn watched(&self, subject: &Subject) -> Watched {
        let mut watched = Watched::default();
        let named = |name: &Option<DatastoreName>| self.datastore(name.as_ref()).ok();
        match subject {
            Subject::None => {}
            Subject::Datastore(name) => watched.datastores.extend(named(name)),
            Subject::Vm(vm) => self.watch_vm(vm, &mut watched),
            Subject::VmTo(vm, to) => {
                self.watch_vm(vm, &mut watched);
                watched.datastores.extend(to.as_ref().and_then(|to| self.datastore(Some(to)).ok()));
            }
            Subject::Bin(Some(name), _) => watched.datastores.extend(self.datastore(Some(name)).ok()),
            Subject::Bin(None, entries) => watched.datastores.extend(self.datastores_of_bin(entries)),
            Subject::Job(id) => {
                let own = self.tracked(|job| (job.id == *id).then(|| job.datastore.clone()));
                watched.datastores.extend(own.into_iter().flatten());
            }
            Subject::Added(name) => {
                watched.datastores.extend(self.datastore(Some(name)).ok());
                watched.datastores.push(self.main.clone());
            }
        }
        watched
    }

    fn watch_vm(&self, vm: &VmName, watched: &mut Watched) {
        if let Ok(entry) = self.entry(vm.as_str()) {
            if let Some(files) = entry.running.own().and_then(|vm| vm.files.as_ref()) {
                watched.folders.push((entry.datastore.name.clone(), files.dir().clone()));
            }
            watched.datastores.push(entry.datastore.clone());
        }
        watched.datastores.extend(self.idle_home(vm.as_str()).map(|home| home.datastore));
    }

    /// Returns the datastores with one of the entries; all datastores if there are no entries or none has one.
    fn datastores_of_bin(&self, entries: &[String]) -> Vec<Rc<Datastore>> {
        let has = |datastore: &Rc<Datastore>| {
            let all = datastore.bin.all();
            all.iter().any(|(id, record)| entries.contains(id) || entries.contains(&record.vm.to_string()))
        };
        let datastores: Vec<_> = self.datastores().into_iter().filter(has).collect();
        if datastores.is_empty() { self.datastores() } else { datastores }
    }
}
