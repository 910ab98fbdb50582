//! QEMU's guest agent, and the hook that it runs before the file systems are frozen and after they are thawed.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use super::Result;
use crate::initramfs::{AGENT, HOOKED, INIT};
use crate::wire::AGENT_PORT;

pub(super) struct Agent(Child);

impl Agent {
    pub(super) fn start() -> Result<Agent> {
        let log = File::create("/tmp/agent.log")?;
        let hook = format!("--fsfreeze-hook={INIT}");
        let child = Command::new(AGENT)
            .args(["--method", "virtio-serial", "--statedir", "/tmp", &hook, "--path"])
            .arg(port()?)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Agent(child))
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    pub(super) fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

/// Returns the device of the port. udev, which this guest does not have, would name it.
fn port() -> Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name"))?.trim() == AGENT_PORT {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err("no port for the guest agent".into())
}

/// Does what the agent's hook is asked to do: writes a file on each disk before the freeze, removes it after the thaw.
pub(crate) fn hook(what: &str) -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| place.starts_with("/disk")) {
        let path = Path::new(place).join(HOOKED);
        match what {
            "freeze" => writeln!(File::create(path)?, "freeze")?,
            _ => fs::remove_file(path)?,
        }
    }
    Ok(())
}
