//! Images of Ceph's RBD, served by qemu-storage-daemon through librbd, with RBD's own snapshots.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use blk::{Error, Result};
use export::nbd_client;
use serde_json::{Value, json};

use super::host_volume::{check_name, unique};
use super::needs::{Need, check};
use super::operations::{OperationState, Operations, SnapshotDisk};
use super::program;
use super::qmp::Qmp;
use super::server::Server;
use super::storage_daemon::{self, socket};
use super::undo::Undo;
use crate::subject::CommitEnd;

/// Longest time for a command of `rbd`.
const LIMIT: Duration = Duration::from_secs(600);
/// Longest time of a first look at the cluster.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// Removes the image `$1`, if it was created, with its snapshots; the other arguments select the cluster. A client that was killed keeps
/// its watch for 30 s, so this is repeated for a minute.
const UNDO: &str = "\
image=$1
shift
rbd \"$@\" info \"$image\" >/dev/null || exit 0
tries=0
until rbd \"$@\" snap purge --no-progress \"$image\" && rbd \"$@\" rm --no-progress \"$image\"; do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || { status=1; break; }
    sleep 1
done";

/// A pool, and how to reach its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    pub name: String,
    /// The client's name without `client.`; None: librados' default.
    pub user: Option<String>,
    pub conf: Option<String>,
}

impl Pool {
    /// Parses `POOL[:id=NAME][:conf=FILE]`. Errors: `Invalid`.
    pub fn parse(text: &str) -> Result<Pool> {
        let expected =
            || Error::invalid(text, "expected POOL[:id=NAME][:conf=FILE], such as rbd or vms:id=lab");
        let mut parts = text.split(':');
        let name = parts.next().filter(|name| check_name(name).is_ok()).ok_or_else(expected)?;
        let mut pool = Pool { name: name.into(), user: None, conf: None };
        for part in parts {
            match part.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(expected)? {
                ("id", id) => pool.user = Some(id.into()),
                ("conf", file) => pool.conf = Some(file.into()),
                _ => return Err(expected()),
            }
        }
        Ok(pool)
    }

    /// Returns the options of `rbd` that select the cluster.
    fn cluster(&self) -> Vec<String> {
        let conf = self.conf.iter().flat_map(|conf| ["--conf".to_string(), conf.clone()]);
        let user = self.user.iter().flat_map(|user| ["--id".to_string(), user.clone()]);
        conf.chain(user).collect()
    }

    fn rbd(&self, words: &[&str]) -> Command {
        let mut command = Command::new("rbd");
        command.args(self.cluster()).args(words);
        command
    }

    /// Refuses a machine that cannot run this stack, and a pool that does not answer. Errors: `Unsupported`.
    pub(super) fn check(&self) -> Result<()> {
        let needs =
            [Need::Program("rbd", "ceph-common"), Need::Program("qemu-storage-daemon", "qemu-system-common")];
        check("rbd", &needs)?;
        program::run(&mut self.rbd(&["ls", "--pool", &self.name]), LOOK_LIMIT).map(drop).map_err(|e| {
            let advice =
                "create it with `ceph osd pool create` and `rbd pool init`, or name another with --rbd POOL:conf=FILE";
            Error::unsupported(
                "rbd",
                format!("the pool {} does not answer: {}; {advice}", self.name, e.cause),
            )
        })
    }

    /// Returns the node of an image, or of one of its snapshots, for QEMU.
    fn node(&self, image: &str, snapshot: Option<&str>) -> Value {
        let mut node = json!({
            "driver": "rbd", "node-name": snapshot.map_or("disk".into(), node_name), "pool": self.name,
            "image": image, "cache": { "direct": true }, "read-only": snapshot.is_some(),
        });
        let optional =
            [("snapshot", snapshot), ("user", self.user.as_deref()), ("conf", self.conf.as_deref())];
        for (key, value) in optional {
            if let Some(value) = value {
                node[key] = value.into();
            }
        }
        node
    }
}

/// Returns the name of a snapshot's node and of its export.
fn node_name(snapshot: &str) -> String {
    format!("snap_{snapshot}")
}

pub(super) struct Rbd {
    pool: Pool,
    image: String,
    folder: PathBuf,
    server: Server,
    qmp: Qmp,
    /// Snapshots that are exported.
    exported: Vec<String>,
    undo: Undo,
}

impl Rbd {
    /// Creates an image of `bytes` and serves it.
    pub(super) fn create(pool: &Pool, folder: &Path, bytes: u64) -> Result<Rbd> {
        let image = format!("unstun-lab-{}", unique()?);
        let path = format!("{}/{image}", pool.name);
        let cluster = pool.cluster();
        let mut arguments = vec![OsStr::new(&path)];
        arguments.extend(cluster.iter().map(OsStr::new));
        let undo = Undo::start(UNDO, &arguments, folder)?;
        program::run(&mut pool.rbd(&["create", "--size", &format!("{bytes}B"), &path]), LIMIT)?;
        let blockdevs = [pool.node(&image, None).to_string()];
        let (server, qmp) = storage_daemon::start(&blockdevs, "disk", folder)?;
        let (pool, folder) = (pool.clone(), folder.to_owned());
        Ok(Rbd { pool, image, folder, server, qmp, exported: Vec::new(), undo })
    }

    pub(super) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", socket(&self.folder).display())
    }

    fn snapshot(&self, name: &str) -> String {
        format!("{}/{}@{name}", self.pool.name, self.image)
    }
}

/// The I/O below librbd is that of other machines, and is not counted.
impl Operations for Rbd {
    fn take(&mut self, name: &str, _: &OperationState) -> Result<()> {
        check_name(name)?;
        let words = ["snap", "create", "--no-progress", &self.snapshot(name)];
        program::run(&mut self.pool.rbd(&words), LIMIT).map(drop)
    }

    /// Removes the snapshot. The OSDs free what it alone had later.
    fn commit(&mut self, name: &str, state: &OperationState) -> Result<CommitEnd> {
        check_name(name)?;
        if let Some(place) = self.exported.iter().position(|exported| exported == name) {
            let node = node_name(name);
            self.qmp.call("block-export-del", json!({ "id": node, "mode": "hard" }))?;
            self.qmp.call("blockdev-del", json!({ "node-name": node }))?;
            self.exported.remove(place);
        }
        let words = ["snap", "rm", "--no-progress", &self.snapshot(name)];
        program::run_while(&mut self.pool.rbd(&words), LIMIT, || state.check_cancelled("rbd"))?;
        Ok(CommitEnd::Done)
    }

    fn frozen(&mut self, name: &str) -> Result<Vec<SnapshotDisk>> {
        check_name(name)?;
        let node = node_name(name);
        if !self.exported.iter().any(|exported| exported == name) {
            self.qmp.call("blockdev-add", self.pool.node(&self.image, Some(name)))?;
            let export = json!({ "type": "nbd", "id": node, "node-name": node, "name": node });
            self.qmp.call("block-export-add", export)?;
            self.exported.push(name.into());
        }
        Ok(vec![SnapshotDisk::Export(nbd_client::connect(&self.uri(&node))?)])
    }

    fn close(&mut self) -> Result<()> {
        self.server.stop()?;
        self.undo.run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_a_user_and_a_cluster() {
        let pool = Pool::parse("vms:id=lab:conf=/etc/ceph/a, b.conf").unwrap();
        assert_eq!(pool.cluster(), ["--conf", "/etc/ceph/a, b.conf", "--id", "lab"]);
        let node = pool.node("image", Some("a"));
        assert_eq!((&node["snapshot"], &node["conf"]), (&json!("a"), &json!("/etc/ceph/a, b.conf")));
        assert_eq!(Pool::parse("rbd").unwrap().cluster(), [""; 0]);
        for text in ["", "-p", "a/b", "a:b", "a:id=", "a:key=x"] {
            assert!(Pool::parse(text).unwrap_err().cause.contains("POOL[:id=NAME]"), "{text}");
        }
    }
}
