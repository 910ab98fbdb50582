//! The guest's side: process 1, with no other process but the guest agent, which some scenarios start.

mod agent;
mod churn;
mod network;
mod san;
mod tree;
mod writer;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpStream, UdpSocket};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::sync;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use rustix::system::{RebootCommand, init_module, reboot};
use serde::Serialize;
use serde_json::Value;

use crate::initramfs::MODULES;
use crate::wire::{Ask, CONTROL_PORT, Durable, ECHO_PORT, HOST};
use agent::Agent;
use churn::Churn;
use writer::Writer;

/// Result whose error is a sentence for the host or the console.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs the guest. It never returns, because a kernel whose process 1 ends panics: it powers off, so that QEMU ends and
/// the host notices.
pub(crate) fn main() -> ! {
    match catch_unwind(run) {
        Ok(Ok(())) => println!("init: the host has hung up"),
        Ok(Err(error)) => println!("init: {error}"),
        Err(_) => println!("init: panicked"),
    }
    let refused = reboot(RebootCommand::PowerOff);
    panic!("no power off: {refused:?}");
}

/// Runs as the guest agent's hook, which the agent tells what it is about to do.
pub(crate) fn hook(what: &str) -> ExitCode {
    match agent::hook(what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("hook: {what}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    for (kind, place) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        mount(kind, place, kind, MountFlags::empty(), None)?;
    }
    load_modules(MODULES)?;
    network::up()?;
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((HOST, port(ECHO_PORT)?))?;
    std::thread::spawn(move || echo(&socket));

    let mut guest = Guest { disks: disks()?, ..Guest::default() };
    while !has_ended(guest.serve(network::control(port(CONTROL_PORT)?)?))? {}
    Ok(())
}

/// Returns whether the host has hung up. A guest that was resumed from a snapshot has a connection that the new QEMU does not
/// know, and makes another one.
fn has_ended(served: Result<()>) -> Result<bool> {
    let lost = |error: &io::Error| [ErrorKind::ConnectionReset, ErrorKind::TimedOut].contains(&error.kind());
    match served {
        Ok(()) => Ok(true),
        Err(error) if error.downcast_ref().is_some_and(lost) => Ok(false),
        Err(error) => Err(error),
    }
}

fn port(parameter: &str) -> Result<u16> {
    Ok(env::var(parameter).map_err(|_| format!("no kernel parameter {parameter}"))?.parse()?)
}

fn load_modules(folder: &str) -> Result<()> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        init_module(&fs::read(&path)?, c"").map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns the disks by serial number.
fn disks() -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        if let Ok(serial) = fs::read_to_string(entry.path().join("serial")) {
            found.insert(serial.trim().to_owned(), Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}

fn echo(socket: &UdpSocket) {
    let mut bytes = [0xff; 8];
    // The guest sends the first message, which opens the return path.
    while socket.send(&bytes).is_ok() && socket.recv(&mut bytes).is_ok() {}
}

#[derive(Default)]
struct Guest {
    disks: BTreeMap<String, PathBuf>,
    /// Folders at which disks are mounted.
    mounted: BTreeMap<String, PathBuf>,
    writers: Vec<Writer>,
    churns: BTreeMap<String, Churn>,
    agent: Option<Agent>,
}

impl Guest {
    /// Answers requests until the host hangs up.
    fn serve(&mut self, control: TcpStream) -> Result<()> {
        let mut answers = control.try_clone()?;
        for line in BufReader::new(control).lines() {
            let answer = self.answer(serde_json::from_str(&line?)?).map_err(|error| error.to_string());
            writeln!(answers, "{}", serde_json::to_string(&answer)?)?;
        }
        Ok(())
    }

    fn answer(&mut self, ask: Ask) -> Result<Value> {
        match ask {
            Ask::Mount { disk, kind } => json(self.mount(&disk, &kind)?),
            Ask::Unmount { disk } => json(self.unmount(&disk)?),
            Ask::Size { disk } => {
                let device = self.disks.get(&disk).ok_or("no such disk")?.file_name().ok_or("no name")?;
                let sectors = fs::read_to_string(Path::new("/sys/block").join(device).join("size"))?;
                json(sectors.trim().parse::<u64>()? * 512)
            }
            Ask::Sync => {
                sync();
                json(())
            }
            Ask::StartAgent => {
                self.agent = Some(Agent::start()?);
                json(())
            }
            Ask::StopAgent { continues: true } => json(self.agent()?.signal(Signal::STOP)?),
            Ask::ContinueAgent => json(self.agent()?.signal(Signal::CONT)?),
            Ask::StopAgent { continues: false } => {
                json(self.agent.take().ok_or("the agent does not run")?.kill()?)
            }
            Ask::StartWriters => json(self.start_writers()?),
            Ask::Gaps => json(self.writers.iter().map(Writer::gap).collect::<Vec<_>>()),
            Ask::StopWriters => json(writer::stop_and_verify(std::mem::take(&mut self.writers))?),
            Ask::StartChurn => {
                self.churns = self.mounted.iter().map(|(d, at)| (d.clone(), Churn::start(at))).collect();
                json(())
            }
            Ask::Churned => {
                json(self.churns.iter().map(|(d, churn)| (d.clone(), churn.durable())).collect::<Durable>())
            }
            Ask::CheckChurn(durable) => {
                let checked = durable.iter().map(|(disk, last)| churn::check(self.at(disk)?, *last));
                json(checked.sum::<Result<u64>>()?)
            }
            Ask::Weigh { bytes } => {
                json(self.mounted.values().try_for_each(|place| tree::weigh(place, bytes))?)
            }
            Ask::Fill { generation } => {
                json(self.mounted.values().try_for_each(|place| tree::fill(place, generation))?)
            }
            Ask::Change => json(self.mounted.values().try_for_each(|place| tree::change(place))?),
            Ask::Tree { disk } => json(tree::list(self.at(&disk)?)?),
            Ask::Reserve => json(san::reserved()?),
        }
    }

    fn agent(&self) -> Result<&Agent> {
        Ok(self.agent.as_ref().ok_or("the agent does not run")?)
    }

    fn at(&self, disk: &str) -> Result<&Path> {
        Ok(self.mounted.get(disk).ok_or_else(|| format!("{disk} is not mounted"))?)
    }

    fn mount(&mut self, disk: &str, kind: &str) -> Result<()> {
        let device = self.disks.get(disk).ok_or_else(|| format!("no {disk} among {:?}", self.disks))?;
        let place = Path::new("/").join(disk);
        fs::create_dir_all(&place)?;
        mount(device, &place, kind, MountFlags::empty(), None)?;
        self.mounted.insert(disk.to_owned(), place);
        Ok(())
    }

    fn unmount(&mut self, disk: &str) -> Result<()> {
        if let Some(churn) = self.churns.remove(disk) {
            churn.stop()?;
        }
        unmount(self.at(disk)?, UnmountFlags::empty())?;
        self.mounted.remove(disk);
        Ok(())
    }

    fn start_writers(&mut self) -> Result<()> {
        for (number, (disk, device)) in (0..).zip(&self.disks) {
            let path = self.mounted.get(disk).map(|place| place.join("writer"));
            self.writers.push(Writer::start(disk, number, path.as_deref().unwrap_or(device))?);
        }
        Ok(())
    }
}

fn json(value: impl Serialize) -> Result<Value> {
    Ok(serde_json::to_value(value)?)
}
