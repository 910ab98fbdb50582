//! `unstun datastore`.

use std::path::{Path, PathBuf};

use api::client::Client;
use api::error::{Error, Result};
use api::output::{Output, align_right, table};
use api::units::format_bytes;
use api::{Datastore, DatastoreAdd, DatastoreCreated};

use crate::cli::{DatastoreCommand, Switch};
use crate::command::{consent, loss};
use crate::daemon;

pub(super) async fn run(command: &DatastoreCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        DatastoreCommand::List => output.result(&client.datastore_list().await?, |all| list(all)),
        DatastoreCommand::Add { what, reservations } => {
            let reservations = reservations.map(|wish| wish == Switch::On);
            let request = DatastoreAdd { reservations, ..request(what)? };
            output.result(&client.datastore_add(&request).await?, added)
        }
        DatastoreCommand::TakeOver { what, yes } => take_over(what, *yes, client, output).await,
        DatastoreCommand::Create { .. } | DatastoreCommand::Rebuild { .. } => unreachable!("run elsewhere"),
        DatastoreCommand::Remove { name, consent } => {
            loss::remove_datastore(name, consent, client, output).await
        }
    }
}

async fn take_over(what: &str, yes: bool, client: &Client, output: Output) -> Result<()> {
    let listed = client.datastore_list().await?;
    let request = match listed.into_iter().find(|one| one.name.to_string() == what) {
        Some(known) => {
            DatastoreAdd { path: known.path, name: Some(known.name), take_over: true, reservations: None }
        }
        None => DatastoreAdd { take_over: true, ..request(what)? },
    };
    let means = match daemon::image_at(&request.path) {
        Some(_) => {
            "Ceph refuses all writes of the host that has the image from now on. Its VMs lose their disks there, as at a power \
             cut; what they had flushed is kept."
        }
        None => {
            "the host that holds its lease must be dead or cut off from the device. A machine that is only suspended, or an \
             I/O that the storage still holds back, may write over what is written from here, and both lose data. The lease is \
             claimed once its owner has sent no heartbeat for about 42 seconds."
        }
    };
    output.note(&format!("{}: {means}", request.path.display()));
    if !yes {
        consent("Take over the lease?", "takes over the lease")?;
    }
    output.result(&client.datastore_add(&request).await?, added)
}

/// Creates a datastore without a daemon.
pub(super) fn create(path: &Path, size: Option<u64>, force: bool, output: Output) -> Result<()> {
    let path =
        daemon::absolute_store(path, "no such device or file; a folder needs only `unstun datastore add`")?;
    if path.is_dir() {
        let cause = "is a folder, which needs no preparation";
        return Err(Error::invalid(format!("{}: {cause}: `unstun datastore add` serves it", path.display())));
    }
    output.result(&daemon::create_datastore(&path, size, force)?, created)
}

fn created(created: &DatastoreCreated) -> String {
    let (path, size) = (created.path.display(), format_bytes(created.size_bytes));
    let gone = created.overwritten.as_ref().map_or(String::new(), |what| format!("; {what} was overwritten"));
    format!(
        "{path} is an empty datastore of {size}{gone}\nserve it with `unstun datastore add [NAME=]{path}`"
    )
}

/// Parses `PATH` or `NAME=PATH`.
fn request(what: &str) -> Result<DatastoreAdd> {
    let named = what.split_once('=').and_then(|(name, path)| Some((name.parse().ok()?, path)));
    let (name, path) = named.map_or((None, what), |(name, path)| (Some(name), path));
    let path = match daemon::image_at(Path::new(path)) {
        Some(image) => image.map(|_| PathBuf::from(path))?,
        None => std::path::absolute(path).map_err(|e| Error::invalid(format!("{path}: {e}")))?,
    };
    Ok(DatastoreAdd { path, name, take_over: false, reservations: None })
}

fn added(datastore: &Datastore) -> String {
    let (name, path) = (&datastore.name, datastore.path.display());
    let vms = datastore.vms.unwrap_or_default();
    let notices: String = datastore.notices.iter().map(|notice| format!("\n{notice}")).collect();
    format!("datastore {name} is served: {path}, {vms} VMs{notices}")
}

pub(super) fn list(all: &[Datastore]) -> String {
    let mut table = table(&["datastore", "state", "VMs", "free", "bin", "reclaimable", "total", "path"]);
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), format_bytes);
    for one in all {
        table.add_row([
            one.name.to_string(),
            one.condition.as_str().to_owned(),
            one.vms.map_or("-".to_owned(), |count| count.to_string()),
            bytes(one.free_bytes),
            bytes(one.bin_bytes),
            bytes(one.reclaimable_bytes),
            bytes(one.total_bytes),
            one.path.display().to_string(),
        ]);
    }
    align_right(&mut table, &[2, 3, 4, 5, 6]);
    let said = |one: &Datastore| {
        let all = one.message.iter().chain(&one.notices);
        all.map(|line| format!("\n{}: {line}", one.name)).collect::<String>()
    };
    format!("{table}{}", all.iter().map(said).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_the_path() {
        let parsed = |what| request(what).map(|r| (r.name.map(|n| n.to_string()), r.path)).unwrap();
        assert_eq!(parsed("fast=/mnt/a"), (Some("fast".into()), "/mnt/a".into()));
        assert_eq!(parsed("/mnt/a"), (None, "/mnt/a".into()));
        assert_eq!(parsed("/mnt/x=y"), (None, "/mnt/x=y".into()));
        assert_eq!(parsed("c=rbd:vms/a:id=u"), (Some("c".into()), "rbd:vms/a:id=u".into()));
        assert_eq!(parsed("rbd:vms/a:id=u"), (None, "rbd:vms/a:id=u".into()));
    }
}
