//! A LUN that two hosts reach: the kernel's own iSCSI target with persistent reservations, over a disk in memory, and two
//! initiators, each of which is a host to the device.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use blk::reactor::OpenMode;
use blk::uring::UringReactor;
use blk::{Buf, Env, Executor, File};
use engine::native::{Claimant, Lease, LeaseTimes, NewStore, Owner, Store, TakeOver};
use rustix::mount::{MountFlags, mount};

use super::{Result, load_modules, network};
use crate::initramfs::{INITIATOR, SAN_MODULES};
use crate::wire::Reserved;

const CONFIG: &str = "/sys/kernel/config";
const CORE: &str = "/sys/kernel/config/target/core/rd_mcp_0/lun";
/// Where the target keeps registrations that outlast a loss of power.
const REGISTRATIONS: &str = "/var/target/pr";
/// Pages of 4 KiB of the disk.
const PAGES: u32 = 16_384;
const FOUND_MAX: Duration = Duration::from_secs(60);
/// Where blocks are written past all fences: behind the store.
const RAW_AT: u64 = 60 << 20;
const SMALL: NewStore = NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT };

/// The protocol's times, shorter than for a SAN and long enough for an emulated machine.
fn terms() -> LeaseTimes {
    LeaseTimes {
        heartbeat_us: 500_000,
        expiry_us: 12_000_000,
        io_max_us: 1_000_000,
        claim_us: 3_000_000,
        settle_us: 4_000_000,
        margin_us: 500_000,
        ..LeaseTimes::default()
    }
}

/// One host: its path to the LUN, and a reactor that stands still while it is not used.
struct Host {
    name: &'static str,
    device: PathBuf,
    executor: Executor,
    openings: u64,
}

impl Host {
    fn new(name: &'static str, device: PathBuf) -> Result<Host> {
        let executor = Executor::new(Rc::new(UringReactor::new()?));
        Ok(Host { name, device, executor, openings: 0 })
    }

    fn run<T: 'static>(&self, work: impl Future<Output = blk::Result<T>> + 'static) -> Result<T> {
        Ok(self.executor.run(work).ok_or("the reactor stopped")??)
    }

    fn format(&self) -> Result<()> {
        let (env, device) = (self.executor.env(), self.device.clone());
        self.run(async move { Store::format(&env, &open(&env, &device).await?, SMALL).await })
    }

    /// Acquires the lease, with the user's word that former owners have ended, or with the knowledge.
    fn acquire(&mut self, take_over: TakeOver, reserves: Option<bool>, knows: bool) -> Result<Rc<Lease>> {
        self.openings += 1;
        let (env, device) = (self.executor.env(), self.device.clone());
        let id = u128::from(self.openings) << 8 | u128::from(self.name.as_bytes()[0]);
        let owner = Owner { id, host: self.name.to_owned(), ..Owner::default() };
        let has_ended: Rc<dyn Fn(&Owner) -> bool> = Rc::new(move |_| knows);
        let claimant = Claimant { owner, terms: terms(), take_over, reserves, has_ended };
        self.run(async move { Lease::acquire(&env, open(&env, &device).await?, claimant).await })
    }

    /// Writes a block past the lease. Returns the device's error.
    fn write(&self) -> Result<Option<String>> {
        let (env, device) = (self.executor.env(), self.device.clone());
        let write = async move {
            let file = open(&env, &device).await?;
            Ok(file.write(RAW_AT, Buf::zeroed(4096)).await.err().map(|e| e.to_string()))
        };
        self.run(write)
    }

    fn reads(&self) -> Result<bool> {
        let (env, device) = (self.executor.env(), self.device.clone());
        self.run(async move { Ok(open(&env, &device).await?.read(RAW_AT, Buf::alloc(4096)).await.1.is_ok()) })
    }

    fn release(&self, lease: Rc<Lease>) -> Result<()> {
        // The host has stood still, and claims its lease anew first.
        let claimed = async move {
            match lease.fence().pass().await {
                Ok(()) => lease.release().await,
                Err(e) => Err(e.at("", "waiting for a heartbeat")),
            }
        };
        self.run(claimed)
    }
}

async fn open(env: &Env, device: &Path) -> blk::Result<File> {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    env.open_root("/dev")?.open(&name, OpenMode::Write).await
}

/// Lets two hosts take a store from each other, and tells what the device has made of it.
pub(super) fn reserved() -> Result<Reserved> {
    let [first, second] = paths()?;
    let (mut a, mut b) = (Host::new("a", first)?, Host::new("b", second)?);
    a.format()?;
    let of_a = a.acquire(TakeOver::FromNobody, Some(true), false)?;
    let beside_an_owner = b.write()?;
    // Host a stands still from now on, with its lease.
    let of_b = b.acquire(TakeOver::FromAnyOwner, None, false)?;
    let after_a_take_over = a.write()?;
    let (a_reads, b_writes) = (a.reads()?, b.write()?.is_none());
    let fence = of_a.fence();
    let why_lost = a.run(async move { Ok(fence.until_lost().await.to_string()) })?;
    b.release(of_b)?;
    let after_a_release = a.write()?;
    // Killed, and begun again on the same host.
    drop(a.acquire(TakeOver::FromNobody, None, false)?);
    let again = a.acquire(TakeOver::FromNobody, None, true)?;
    let reserves_again = again.reserves() && b.write()?.is_some() && a.write()?.is_none();
    a.release(again)?;
    let off = a.acquire(TakeOver::FromNobody, Some(false), false)?;
    let is_off = !off.reserves() && b.write()?.is_none();
    Ok(Reserved {
        beside_an_owner,
        after_a_take_over,
        a_reads,
        b_writes,
        why_lost,
        after_a_release,
        reserves_again,
        is_off,
    })
}

/// Makes the LUN and its two hosts. Returns the LUN's device on each.
fn paths() -> Result<[PathBuf; 2]> {
    fs::create_dir_all(REGISTRATIONS)?;
    load_modules(SAN_MODULES)?;
    mount("none", CONFIG, "configfs", MountFlags::empty(), None)?;
    fs::create_dir_all(CORE)?;
    put(&format!("{CORE}/control"), &format!("rd_pages={PAGES}"))?;
    put(&format!("{CORE}/wwn/vpd_unit_serial"), "unstun-lun")?;
    put(&format!("{CORE}/enable"), "1")?;
    network::link_up("lo")?;
    for host in ["a", "b"] {
        connect(host)?;
    }
    let began = Instant::now();
    loop {
        let mut found: Vec<PathBuf> = fs::read_dir("/sys/block")?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("sd"))
            .map(|name| Path::new("/dev").join(name))
            .collect();
        found.sort();
        if let Ok(both) = <[PathBuf; 2]>::try_from(found) {
            return Ok(both);
        }
        if began.elapsed() > FOUND_MAX {
            return Err("the kernel shows no two SCSI disks".into());
        }
    }
}

/// Connects a host to the LUN, through a target of its own: an initiator makes no second session with the same one. The
/// sessions stay in the kernel.
fn connect(host: &str) -> Result<()> {
    let (target, initiator) = (format!("iqn.2026-11.test:lun-{host}"), format!("iqn.2026-11.test:{host}"));
    let group = format!("{CONFIG}/target/iscsi/{target}/tpgt_1");
    fs::create_dir_all(&group)?;
    fs::create_dir(format!("{group}/lun/lun_0"))?;
    symlink(CORE, format!("{group}/lun/lun_0/lun"))?;
    // Every initiator may write, without a password.
    for (attribute, value) in [
        ("authentication", "0"),
        ("generate_node_acls", "1"),
        ("cache_dynamic_acls", "1"),
        ("demo_mode_write_protect", "0"),
    ] {
        put(&format!("{group}/attrib/{attribute}"), value)?;
    }
    let address = Ipv4Addr::from(network::ADDRESS);
    fs::create_dir(format!("{group}/np/{address}:3260"))?;
    put(&format!("{group}/enable"), "1")?;
    let mut command = Command::new(INITIATOR);
    command.args(["-i", &initiator, "-t", &target, "-g", "1", "-a", &address.to_string()]);
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{initiator}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn put(file: &str, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|e| format!("{file}: {e}").into())
}
