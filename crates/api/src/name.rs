//! Names that a user gives. They are parsed once, on input; all other code holds only valid names.
//!
//! A VM's name is also a folder, a prefix of its files and of its NBD export names (`VM/diskN@SNAPSHOT`), hence the
//! narrow alphabet: no separator of any of those can occur in it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of a VM's name. The longest file name derived from it (`NAME_12-000001-delta.vmdk`) stays far below
/// the 255 bytes of a file name.
pub const VM_NAME_BYTES_MAX: usize = 64;
/// Maximum length of a policy's name, so that the names of its snapshots have room for a time.
pub const POLICY_NAME_BYTES_MAX: usize = 40;
/// VMware's own limit on a snapshot's display name.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 80;
/// Maximum length of a reference to a snapshot: VMware's 80 characters at four bytes each, with a margin for a tool
/// that counts otherwise.
pub const SNAPSHOT_REF_BYTES_MAX: usize = 512;
/// Maximum length of a description: one line of a snapshot list, far below the 32 MiB request limit and long enough for
/// a paragraph.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Name of a VM; 1 to 64 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct VmName(String);

/// Name of a datastore in its daemon; the same rules as for a VM's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct DatastoreName(String);

/// Name of a token; the same rules as for a VM's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct TokenName(String);

/// Name of a policy; 1 to 40 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct PolicyName(String);

/// Tag of a VM: a word by which people group VMs; the same rules as for a policy's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(String);

/// Name of a repository of backups, in the file of repositories on the daemon's host; the same rules as for a VM's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RepositoryName(String);

/// Name of a snapshot: a label, not an identity; 1 to 80 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotName(String);

/// Reference to an existing snapshot, by name or ID. Names from other tools contain spaces and any letters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotRef(String);

/// A disk of a VM, written as its export is named: `VM/diskN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRef {
    pub vm: VmName,
    pub number: u32,
}

macro_rules! name_type {
    ($type:ident, $check:expr) => {
        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                $check(text).map(|()| Self(text.to_owned()))
            }
        }

        as_text!($type);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(VmName, |text: &str| check_name("VM", text, VM_NAME_BYTES_MAX));
name_type!(DatastoreName, |text: &str| check_name("datastore", text, VM_NAME_BYTES_MAX));
name_type!(TokenName, |text: &str| check_name("token", text, VM_NAME_BYTES_MAX));
name_type!(PolicyName, |text: &str| check_name("policy", text, POLICY_NAME_BYTES_MAX));
name_type!(Tag, |text: &str| check_name("tag", text, POLICY_NAME_BYTES_MAX));
name_type!(RepositoryName, |text: &str| check_name("repository", text, VM_NAME_BYTES_MAX));
name_type!(SnapshotName, |text: &str| check_name("snapshot", text, SNAPSHOT_NAME_BYTES_MAX));
name_type!(SnapshotRef, check_ref);

impl From<&SnapshotName> for SnapshotRef {
    fn from(name: &SnapshotName) -> Self {
        Self(name.0.clone())
    }
}

impl FromStr for DiskRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{}: expected VM/diskN, such as web/disk0", quoted(text));
        let (vm, number) = text.split_once("/disk").ok_or_else(expected)?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|_| digits).ok_or_else(expected)?;
        Ok(Self { vm: vm.parse()?, number })
    }
}

impl fmt::Display for DiskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/disk{}", self.vm, self.number)
    }
}

fn check_ref(text: &str) -> Result<(), String> {
    let sound = !text.is_empty() && !text.chars().any(char::is_control);
    if sound && text.len() <= SNAPSHOT_REF_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "snapshot {}: expected its name or id, 1 to {SNAPSHOT_REF_BYTES_MAX} bytes without control characters",
        quoted(text)
    ))
}

fn check_name(what: &str, text: &str, limit: usize) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let sound = text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed);
    if sound && text.len() <= limit {
        return Ok(());
    }
    Err(format!(
        "{what} name {}: expected 1 to {limit} letters, digits, '.', '_' or '-', the first a letter or digit",
        quoted(text)
    ))
}

/// Returns untrusted text for a message: escaped, and at most a line long.
fn quoted(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let rest = if shown.len() < text.len() { "..." } else { "" };
    format!("{shown:?}{rest}")
}

/// Checks a snapshot's description: one line of text.
pub fn check_message(text: &str) -> Result<(), String> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(format!("message of {} bytes: expected at most {MESSAGE_BYTES_MAX}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("message {}: expected one line without control characters", quoted(text)));
    }
    Ok(())
}

/// Parses the equivalent forms `VM NAME` and `VM@NAME`. `T` is the type of a new snapshot's name or of a reference.
pub fn vm_and_snapshot<T: FromStr<Err = String>>(
    vm: &str,
    snapshot: Option<&str>,
) -> Result<(VmName, Option<T>), String> {
    match (vm.split_once('@'), snapshot) {
        (Some(_), Some(second)) => {
            Err(format!("snapshot named twice: {} and {}", quoted(vm), quoted(second)))
        }
        (Some((vm, snapshot)), None) => Ok((vm.parse()?, Some(snapshot.parse()?))),
        (None, Some(snapshot)) => Ok((vm.parse()?, Some(snapshot.parse()?))),
        (None, None) => Ok((vm.parse()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ordinary_names() {
        for text in ["web", "db-01", "a", "9lives", "before.upgrade_2"] {
            assert_eq!(text.parse::<VmName>().unwrap().as_str(), text);
            assert_eq!(text.parse::<SnapshotName>().unwrap().as_str(), text);
        }
        assert!("x".repeat(VM_NAME_BYTES_MAX).parse::<VmName>().is_ok());
    }

    #[test]
    fn refuses_what_a_path_or_an_export_name_could_trip_over() {
        for text in ["", ".", "..", "../etc", "a/b", "a@b", "a b", "-web", ".web", "web\n", "w\u{e9}b", "a\0"]
        {
            let error = text.parse::<VmName>().unwrap_err();
            assert!(error.contains("expected 1 to 64 letters"), "{text:?}: {error}");
            assert!(text.parse::<SnapshotName>().is_err(), "{text:?}");
        }
        assert!("x".repeat(VM_NAME_BYTES_MAX + 1).parse::<VmName>().is_err());
        assert!("x".repeat(SNAPSHOT_NAME_BYTES_MAX + 1).parse::<SnapshotName>().is_err());
    }

    #[test]
    fn a_refusal_stays_one_short_line() {
        let error = "\n".repeat(100_000).parse::<VmName>().unwrap_err();
        assert!(error.len() < 300 && !error.contains('\n'));
    }

    #[test]
    fn at_sign_stands_for_a_space() {
        let both =
            ("web".parse::<VmName>().unwrap(), Some("before-upgrade".parse::<SnapshotName>().unwrap()));
        assert_eq!(vm_and_snapshot("web@before-upgrade", None).unwrap(), both);
        assert_eq!(vm_and_snapshot("web", Some("before-upgrade")).unwrap(), both);
        assert_eq!(vm_and_snapshot::<SnapshotName>("web", None).unwrap().1, None);
        assert!(vm_and_snapshot::<SnapshotName>("web@a", Some("b")).unwrap_err().contains("twice"));
        assert!(vm_and_snapshot::<SnapshotName>("web@", None).is_err());
    }

    #[test]
    fn a_snapshot_of_other_tools_can_be_named() {
        let (_, named) = vm_and_snapshot::<SnapshotRef>("web@Before update 2 @night", None).unwrap();
        assert_eq!(named.unwrap().as_str(), "Before update 2 @night");
        for text in ["", "a\nb", &"x".repeat(SNAPSHOT_REF_BYTES_MAX + 1)] {
            assert!(text.parse::<SnapshotRef>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn disks_are_named_as_their_exports_are() {
        let disk: DiskRef = "web/disk12".parse().unwrap();
        assert_eq!((disk.vm.as_str(), disk.number, disk.to_string().as_str()), ("web", 12, "web/disk12"));
        for text in [
            "",
            "web",
            "web/disk",
            "web/disk+1",
            "web/disk-1",
            "../disk0",
            "web/disk0@a",
            "web/disk99999999999",
        ] {
            assert!(text.parse::<DiskRef>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn messages_are_one_line() {
        assert!(check_message("before the 2.1 upgrade, \u{fc}ber").is_ok());
        assert!(check_message("a\nb").is_err());
        assert!(check_message(&"x".repeat(MESSAGE_BYTES_MAX + 1)).is_err());
    }
}
