//! A larger disk for a running guest over NBD: QEMU opens the disk once more, in which it finds the new size, puts it under
//! the guest's device, and tells the guest. The guest's requests wait meanwhile, and none fails.
//!
//! Source: "QEMU QMP Reference Manual" (`query-block`, `blockdev-add`, `qom-set`, `block_resize`, `blockdev-del`). QEMU 6.2 and
//! later change the `drive` of a device in use.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::monitor::Monitor;

/// Time for all of it. QEMU gives each answer at once, unless the guest's requests wait for space.
const RESIZE: Duration = Duration::from_secs(20);
/// Seconds for which QEMU's requests wait for a daemon that restarts, as `attach` prints it.
const RECONNECT_S: u32 = 60;

/// A disk that has grown.
pub(crate) struct Resize {
    /// Socket of QEMU's monitor.
    pub monitor: PathBuf,
    /// Name of the disk's export without the generation, and with it.
    pub stem: String,
    pub export: String,
    pub size_bytes: u64,
}

impl Resize {
    /// Shows the guest the new size. Fails with the cause where the guest has the old one.
    pub(crate) async fn show(self) -> Result<(), String> {
        let (tell, told) = oneshot::channel();
        let work = move || drop(tell.send(self.run()));
        let spawned = thread::Builder::new().name("resize".to_owned()).spawn(work);
        spawned.map_err(|e| format!("a thread to reach QEMU: {e}"))?;
        told.await.unwrap_or_else(|_| Err("the thread that reaches QEMU has ended".to_owned()))
    }

    fn run(&self) -> Result<(), String> {
        let until = Instant::now() + RESIZE;
        let mut monitor = Monitor::connect(&self.monitor, until)?;
        let devices = monitor.call("query-block", json!({}), until)?;
        let opened = |device: &&Value| self.address(&device["inserted"]).is_some();
        let device = devices.as_array().into_iter().flatten().find(opened);
        let device = device.ok_or_else(|| {
            format!(
                "QEMU has no -blockdev on the NBD export {} (or {}) under a device, as `unstun attach` prints it",
                self.export, self.stem
            )
        })?;
        let inserted = &device["inserted"];
        let (Some(path), Some(old)) = (device["qdev"].as_str(), inserted["node-name"].as_str()) else {
            return Err("QEMU does not name the device of the disk".to_owned());
        };
        let new = next_name(old);
        let mut node = self.address(inserted).expect("it was found by that");
        node["node-name"] = json!(new);
        node["read-only"] = inserted["ro"].clone();
        monitor.call("blockdev-add", node, until)?;
        let path =
            if path.starts_with('/') { path.to_owned() } else { format!("/machine/peripheral/{path}") };
        let set = json!({"path": path, "property": "drive", "value": new});
        if let Err(cause) = monitor.call("qom-set", set, until) {
            let _ = monitor.call("blockdev-del", json!({"node-name": new}), until);
            return Err(cause);
        }
        // An old node that stays is one more connection.
        let _ = monitor.call("blockdev-del", json!({"node-name": old}), until);
        let resize = json!({"node-name": new, "size": self.size_bytes});
        monitor.call("block_resize", resize, until).map(drop)
    }

    /// Returns how a node opens the disk over NBD; None for a node of something else. QEMU shows the address as a URI.
    fn address(&self, inserted: &Value) -> Option<Value> {
        if inserted["drv"] != "nbd" {
            return None;
        }
        let uri = inserted["image"]["filename"].as_str().or(inserted["file"].as_str())?;
        let (server, export) = if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
            let (export, path) = rest.split_once("?socket=")?;
            (json!({"type": "unix", "path": path}), export)
        } else {
            let (address, export) = uri.strip_prefix("nbd://")?.split_once('/')?;
            let (host, port) = address.rsplit_once(':')?;
            (json!({"type": "inet", "host": host.trim_matches(['[', ']']), "port": port}), export)
        };
        let is_ours = export == self.stem || export == self.export;
        let cache = &inserted["cache"];
        is_ours.then(|| {
            json!({
                "driver": "nbd", "server": server, "export": self.export, "reconnect-delay": RECONNECT_S,
                "discard": "unmap", "detect-zeroes": inserted["detect_zeroes"],
                "cache": {"direct": cache["direct"], "no-flush": cache["no-flush"]},
            })
        })
    }
}

/// Returns another name for a node: QEMU's have at most 31 bytes.
fn next_name(old: &str) -> String {
    let (stem, number) = match old.rsplit_once(".r") {
        Some((stem, number)) => (stem, number.parse::<u16>().unwrap_or(0).wrapping_add(1)),
        None => (old, 1),
    };
    let stem: String = stem.chars().take(24).collect();
    format!("{stem}.r{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_disks_own_node_is_taken() {
        let resize = Resize {
            monitor: "/run/q".into(),
            stem: "web/disk0".to_owned(),
            export: "web/disk0.g2".to_owned(),
            size_bytes: 1,
        };
        let address = |drv: &str, uri: &str| {
            let cache = json!({"direct": true, "no-flush": false});
            let image = json!({"filename": uri});
            let found = json!({"drv": drv, "image": image, "detect_zeroes": "off", "cache": cache});
            resize.address(&found).map(|node| (node["server"].clone(), node["export"].clone()))
        };
        let unix = json!({"type": "unix", "path": "/run/u.sock"});
        for export in ["web/disk0", "web/disk0.g2"] {
            let found = address("nbd", &format!("nbd+unix:///{export}?socket=/run/u.sock"));
            assert_eq!(found, Some((unix.clone(), json!("web/disk0.g2"))));
        }
        let inet = json!({"type": "inet", "host": "::1", "port": "10809"});
        let found = address("nbd", "nbd://[::1]:10809/web/disk0");
        assert_eq!(found, Some((inet, json!("web/disk0.g2"))));
        assert_eq!(address("nbd", "nbd+unix:///web/disk01?socket=/run/u.sock"), None);
        assert_eq!(address("raw", "nbd+unix:///web/disk0?socket=/run/u.sock"), None);
    }

    #[test]
    fn a_node_gets_another_name_each_time() {
        assert_eq!(next_name("unstun-disk0"), "unstun-disk0.r1");
        assert_eq!(next_name("unstun-disk0.r1"), "unstun-disk0.r2");
        assert!(next_name(&"n".repeat(31)).len() <= 31);
    }
}
