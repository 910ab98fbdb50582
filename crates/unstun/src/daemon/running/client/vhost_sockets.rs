//! Sockets of the vhost-user front end: one for each running disk in the present generation of its content.
//!
//! A socket's name contains the generation, as the export's name does. A client of replaced content therefore finds no
//! socket when it reconnects, and one that is still connected elsewhere cannot take another disk for its own.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use api::listen::SOCKET_PATH_BYTES_MAX;
use blk::socket::Listener;
use blk::uring::UringReactor;
use blk::volume::Exports;
use blk::{Env, Error, Result};
use export::vhost_user::{FrontEnd, Serving, serve};
use tracing::warn;

use crate::daemon::running::client::export_name::lasting_name;
use crate::daemon::running::descriptors::LISTENING;
use crate::daemon::running::vm::RunningVm;
use crate::log::LineLimit;

const SUFFIX: &str = ".sock";
/// Maximum number of log lines per second about sockets that cannot be made.
const LINES_MAX: u32 = 4;

/// A disk's socket.
struct Socket {
    path: PathBuf,
    _serving: Serving,
}

/// Where sockets are made. A simulated world has none.
struct Place {
    folder: PathBuf,
    exports: Rc<dyn Exports>,
}

pub(crate) struct VhostSockets {
    pub front_end: Rc<FrontEnd>,
    env: Env,
    place: RefCell<Option<Place>>,
    /// Sockets by VM and export.
    sockets: RefCell<BTreeMap<String, BTreeMap<String, Socket>>>,
    /// Number of sockets among those of the process, for the budget of descriptors.
    count: Cell<u64>,
    /// None in a simulated world.
    reactor: OnceCell<Rc<UringReactor>>,
    log: LineLimit,
}

impl VhostSockets {
    pub(crate) fn new(env: Env, front_end: Rc<FrontEnd>) -> VhostSockets {
        VhostSockets {
            front_end,
            env,
            place: RefCell::default(),
            sockets: RefCell::default(),
            count: Cell::new(0),
            reactor: OnceCell::new(),
            log: LineLimit::new(LINES_MAX),
        }
    }

    /// Sets the reactor on which the sockets listen: that of the core.
    pub(crate) fn listen_on(&self, reactor: Rc<UringReactor>) {
        assert!(self.reactor.set(reactor).is_ok(), "a core has one reactor");
    }

    /// Makes sockets in `folder`, which is prepared, from now on.
    pub(crate) fn open(&self, folder: PathBuf, exports: Rc<dyn Exports>) {
        self.place.replace(Some(Place { folder, exports }));
    }

    /// Makes the folder of the sockets. What an earlier process has left there is removed: the caller holds the lock of
    /// the datastore, so no other process serves these sockets.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub(crate) fn prepare(folder: &Path) -> Result<()> {
        let failed = |e: std::io::Error| {
            Error::new(
                blk::ErrorKind::Io,
                folder.display().to_string(),
                format!("making the folder of vhost-user sockets: {e}"),
            )
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if is_own_name(&entry.file_name().to_string_lossy()) {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Counts the sockets of this core among those of the process, where a VM has `now` instead of `before`.
    fn recount(&self, before: usize, now: usize) {
        let (before, now) = (before as u64, now as u64);
        self.count.set(self.count.get() + now - before);
        LISTENING.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Gives every running disk of the VM a socket, and removes those of earlier generations and removed disks.
    pub(crate) fn follow(&self, vm: &RunningVm) {
        let place = self.place.borrow();
        let Some(place) = &*place else { return };
        let state = vm.machine.state();
        let wanted = state.disks.iter().map(|disk| disk.number);
        let wanted: BTreeMap<String, u32> =
            wanted.map(|number| (lasting_name(&vm.name, number, state.generation), number)).collect();
        let mut sockets = self.sockets.borrow_mut();
        let own = sockets.entry(vm.name.clone()).or_default();
        let before = own.len();
        own.retain(|export, _| wanted.contains_key(export));
        for (export, number) in
            wanted.iter().filter(|(export, _)| !own.contains_key(*export)).collect::<Vec<_>>()
        {
            match self.make(place, *number, export) {
                Ok(socket) => drop(own.insert(export.clone(), socket)),
                Err(error) => {
                    if let Some(left_out) = self.log.admit() {
                        warn!("{export} has no vhost-user socket: {error}{left_out}");
                    }
                }
            }
        }
        self.recount(before, own.len());
    }

    fn make(&self, place: &Place, number: u32, export: &str) -> Result<Socket> {
        let path = socket_path(&place.folder, export)?;
        let text = path.to_string_lossy().into_owned();
        let reactor = self.reactor.get().expect("a core that serves sockets has a reactor");
        let handle = reactor.listen_unix(&text)?;
        let listener = Listener::new(self.env.clone(), handle, format!("unix:{text}"));
        // A serial number has 20 bytes, too few for the VM's name. A guest distinguishes its own disks by it.
        let serial = format!("disk{number}");
        let serving = serve(&self.env, listener, &place.exports, (export, &serial), &self.front_end);
        Ok(Socket { path, _serving: serving })
    }

    /// Removes the sockets of a VM that does not run any more.
    pub(crate) fn forget(&self, vm: &str) {
        let own = self.sockets.borrow_mut().remove(vm);
        self.recount(own.map_or(0, |own| own.len()), 0);
    }

    /// Returns the path of an export's socket, if it has one.
    pub(crate) fn path(&self, vm: &str, export: &str) -> Option<PathBuf> {
        Some(self.sockets.borrow().get(vm)?.get(export)?.path.clone())
    }

    /// Accepts no further clients. Those that are connected get the answers to their requests under way.
    pub(crate) fn stop(&self) {
        self.front_end.stop();
        self.sockets.take();
        self.place.take();
        LISTENING.fetch_sub(self.count.take(), Ordering::Relaxed);
    }
}

/// Returns the path of an export's socket: with the export's name where that fits, otherwise with a hash of it. The
/// name of the file can be divided from its end in one way only, so two exports never share it.
fn socket_path(folder: &Path, export: &str) -> Result<PathBuf> {
    let named = folder.join(format!("{}{SUFFIX}", export.replace('/', ".")));
    let short = folder.join(format!("{:016x}{SUFFIX}", hash(export)));
    let fits = |path: &PathBuf| path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX;
    [named, short].into_iter().find(fits).ok_or_else(|| {
        let remedy = "serve NBD on a socket in a folder with a shorter path: `unstun up --nbd unix:PATH`";
        let cause = format!("its path leaves no space for a socket's name, which has {SOCKET_PATH_BYTES_MAX} bytes in all; {remedy}");
        Error::invalid(folder.display().to_string(), cause)
    })
}

/// Returns whether a file has the name of a disk's socket. Other files in the folder belong to other programs.
fn is_own_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(name) = name.strip_suffix(SUFFIX) else { return false };
    let is_hash = name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let of_disk = name.rsplit_once(".g").and_then(|(disk, generation)| {
        let (vm, number) = disk.rsplit_once(".disk")?;
        Some(!vm.is_empty() && is_number(number) && is_number(generation))
    });
    is_hash || of_disk == Some(true)
}

/// Returns the FNV-1a hash of 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the folder of the sockets: beside the first Unix socket of NBD, whose users are those of these sockets too.
/// Two daemons whose NBD sockets share a folder have different ones.
pub(crate) fn folder_beside(nbd: &Path) -> PathBuf {
    let stem = nbd.file_stem().unwrap_or_default().to_string_lossy();
    let name = if stem == "nbd" { "vhost".to_owned() } else { format!("{stem}-vhost") };
    nbd.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_exports_name_or_a_hash_or_is_refused() {
        let path = |folder: &str, export: &str| socket_path(Path::new(folder), export);
        assert_eq!(path("/run/vhost", "web/disk0.g7").unwrap(), Path::new("/run/vhost/web.disk0.g7.sock"));
        let long =
            path(&format!("/{}", "d".repeat(60)), &format!("{}/disk11.g123456", "v".repeat(64))).unwrap();
        assert_eq!(long.as_os_str().len(), 61 + 1 + 16 + 5);
        assert!(path(&format!("/{}", "d".repeat(100)), "web/disk0.g1").unwrap_err().cause.contains("--nbd"));
    }

    #[test]
    fn only_names_of_disks_sockets_are_removed() {
        for own in ["web.disk0.g7.sock", "a.b.disk12.g4096.sock", "0123456789abcdef.sock"] {
            assert!(is_own_name(own), "{own}");
        }
        for other in [
            "nbd.sock",
            "web.disk.g7.sock",
            ".disk0.g7.sock",
            "web.disk0.g.sock",
            "web.disk0.g7",
            "0123.sock",
        ] {
            assert!(!is_own_name(other), "{other}");
        }
    }

    #[test]
    fn sockets_are_beside_the_nbd_socket() {
        assert_eq!(folder_beside(Path::new("/ds/.unstun/nbd.sock")), Path::new("/ds/.unstun/vhost"));
        assert_eq!(folder_beside(Path::new("/run/b.sock")), Path::new("/run/b-vhost"));
    }
}
