//! Guests whose file systems are frozen while a snapshot is taken.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{TokenName, VmName};
use crate::units::{format_bytes, format_us};

/// Range of the time for which file systems may be frozen, in milliseconds. A guest's own time limits are tens of seconds.
pub const FROZEN_MS_MIN: u64 = 100;
pub const FROZEN_MS_MAX: u64 = 60_000;
const FROZEN_MS_DEFAULT: u64 = 2000;
/// The kernel's limit on the path of a socket.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Maximum length of the name of a libvirt domain.
const DOMAIN_BYTES_MAX: usize = 255;

words! {
    /// Whether the file systems of a guest are frozen for a take. The command line shows the variants' comments as its help.
    #[derive(Default, clap::ValueEnum)]
    pub enum Quiesce {
        /// They are not frozen: the snapshot is as after a power cut
        #[default]
        No = "no",
        /// They are frozen if that works; otherwise the snapshot is as after a power cut
        Try = "try",
        /// Without frozen file systems there is no snapshot
        Require = "require",
    }
}

/// How the file systems of a guest are frozen and thawed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum GuestAccess {
    /// `unix:PATH`: through the socket of QEMU's guest agent.
    Agent(PathBuf),
    /// `libvirt:DOMAIN`: with `virsh domfsfreeze` and `virsh domfsthaw`.
    Libvirt(String),
    /// `command:NAME`: with the two commands in `/etc/unstun/guests/NAME.toml`.
    Command(TokenName),
}

impl FromStr for GuestAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!("{text:?}: expected unix:PATH of a guest agent's socket, libvirt:DOMAIN or command:NAME")
        };
        let (kind, value) = text.split_once(':').ok_or_else(expected)?;
        if value.chars().any(char::is_control) {
            return Err(format!("{text:?}: expected no control characters"));
        }
        match kind {
            "unix" if !value.starts_with('/') || value.len() > SOCKET_PATH_BYTES_MAX => {
                Err(format!("{text:?}: expected an absolute path of at most {SOCKET_PATH_BYTES_MAX} bytes"))
            }
            "unix" => Ok(GuestAccess::Agent(value.into())),
            // virsh would take it for an option.
            "libvirt" if value.is_empty() || value.starts_with('-') || value.len() > DOMAIN_BYTES_MAX => {
                Err(format!("{text:?}: expected the name of a domain, as `virsh list --all` shows it"))
            }
            "libvirt" => Ok(GuestAccess::Libvirt(value.to_owned())),
            "command" => {
                let name =
                    value.parse().map_err(|_| format!("{text:?}: expected the NAME of a file NAME.toml"))?;
                Ok(GuestAccess::Command(name))
            }
            _ => Err(expected()),
        }
    }
}

impl fmt::Display for GuestAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestAccess::Agent(path) => write!(f, "unix:{}", path.display()),
            GuestAccess::Libvirt(domain) => write!(f, "libvirt:{domain}"),
            GuestAccess::Command(name) => write!(f, "command:{name}"),
        }
    }
}

as_text!(GuestAccess);

/// `unix:PATH`: the socket of QEMU's monitor (QMP).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct MonitorSocket(PathBuf);

impl MonitorSocket {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for MonitorSocket {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(GuestAccess::Agent(path)) => Ok(MonitorSocket(path)),
            Err(cause) if text.starts_with("unix:") => Err(cause),
            _ => Err(format!("{text:?}: expected unix:PATH of the socket of QEMU's monitor (QMP)")),
        }
    }
}

impl fmt::Display for MonitorSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0.display())
    }
}

as_text!(MonitorSocket);

/// Body of `PUT /vms/VM/guest`; part of `vm show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VmGuest {
    /// Null: the file systems of the guest cannot be frozen.
    pub access: Option<GuestAccess>,
    /// Time after which frozen file systems are thawed, and after which a guest that stands still for its memory runs on,
    /// whether the snapshot is taken or not.
    pub frozen_ms_max: u64,
    /// Null: snapshots cannot have the guest's memory.
    pub qmp: Option<MonitorSocket>,
}

impl Default for VmGuest {
    fn default() -> VmGuest {
        VmGuest { access: None, frozen_ms_max: FROZEN_MS_DEFAULT, qmp: None }
    }
}

impl VmGuest {
    pub fn check(&self) -> Result<(), String> {
        let found = self.frozen_ms_max;
        match (FROZEN_MS_MIN..=FROZEN_MS_MAX).contains(&found) {
            true => Ok(()),
            false => {
                Err(format!("frozen_ms_max: found {found}, expected {FROZEN_MS_MIN} to {FROZEN_MS_MAX}"))
            }
        }
    }
}

/// What became of the request to freeze a guest's file systems for a take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quiesced {
    /// Whether the file systems were frozen at the instant of the snapshot.
    pub consistent: bool,
    /// Number of frozen file systems; null where commands do not say.
    pub file_systems: Option<u64>,
    /// Time until the guest had frozen them, with what its own hooks do.
    pub freeze_us: u64,
    /// Time for which they were frozen, until the guest's answer that they are thawed.
    pub frozen_us: u64,
    /// Why the snapshot is not consistent; null if it is.
    pub cause: Option<String>,
}

impl Quiesced {
    /// Returns what became of it as a sentence without its point.
    pub fn sentence(&self) -> String {
        if let Some(cause) = &self.cause {
            return format!("not quiesced: {cause}");
        }
        let which = match self.file_systems {
            None => "file systems".to_owned(),
            Some(1) => "1 file system".to_owned(),
            Some(count) => format!("{count} file systems"),
        };
        let (frozen, freeze) = (format_us(self.frozen_us), format_us(self.freeze_us));
        format!("{which} frozen for {frozen} (the freeze took {freeze})")
    }
}

/// What became of the request to save a guest's memory with a take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemorySaved {
    /// The guest's memory.
    pub ram_bytes: u64,
    /// Length of QEMU's stream. Memory that the guest changes meanwhile is in it more than once, and empty pages are not.
    pub stream_bytes: u64,
    /// Length of the compressed file.
    pub stored_bytes: u64,
    /// Time for which the guest stood still, by QEMU's own events.
    pub stopped_us: u64,
    /// Time from the request until the file was durable.
    pub saved_us: u64,
}

impl MemorySaved {
    /// Returns it as a sentence without its point.
    pub fn sentence(&self) -> String {
        let (ram, stored) = (format_bytes(self.ram_bytes), format_bytes(self.stored_bytes));
        let (saved, stopped) = (format_us(self.saved_us), format_us(self.stopped_us));
        format!("{ram} saved as {stored} in {saved}; the guest stood still for {stopped}")
    }
}

/// Output of `snapshot memory`: the file with the guest's memory at a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotMemory {
    pub vm: VmName,
    pub snapshot: String,
    /// Id of the snapshot.
    pub id: String,
    /// A frame of LZ4 with QEMU's migration stream, after a frame that readers skip.
    pub file: PathBuf,
    pub stored_bytes: u64,
    pub ram_bytes: u64,
    /// QEMU that wrote the stream, such as `7.2.22`.
    pub qemu: String,
}

/// A row of `thaw`: a guest that a daemon left frozen, or standing still, when it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestThawed {
    pub vm: VmName,
    /// How the guest is reached: as `vm set --guest-agent` names it, `qmp:PATH` or `qmp-paused:PATH`.
    pub access: String,
    /// Why it may be frozen still; null if it is thawed.
    pub cause: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_reads_as_it_is_written() {
        for text in ["unix:/run/vm/web agent.sock", "libvirt:web server", "command:oracle"] {
            assert_eq!(text.parse::<GuestAccess>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_access_is_refused_with_what_is_expected() {
        for (text, expected) in [
            ("agent.sock", "expected unix:PATH"),
            ("tcp:1.2.3.4", "expected unix:PATH"),
            ("unix:run/x", "absolute path"),
            ("unix:/run/\n", "control characters"),
            ("libvirt:", "name of a domain"),
            ("libvirt:--all", "name of a domain"),
            ("command:../x", "NAME.toml"),
        ] {
            let error = text.parse::<GuestAccess>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(
            VmGuest { frozen_ms_max: 99, ..VmGuest::default() }.check().unwrap_err().contains("found 99")
        );
        assert!(VmGuest::default().check().is_ok());
        for (text, expected) in [("libvirt:web", "QEMU's monitor"), ("unix:run/x", "absolute path")] {
            let error = text.parse::<MonitorSocket>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!("unix:/run/qmp".parse::<MonitorSocket>().unwrap().to_string(), "unix:/run/qmp");
    }
}
