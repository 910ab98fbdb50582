//! Names of a VM's files, as VMware chooses them (reference/vmware-formats 5.5).

use blk::{Error, Result};

use crate::descriptor::ExtentKind;
use crate::text::{check_name, shown};

/// Deltas are numbered with six digits.
pub(crate) const DELTA_NUMBER_MAX: u32 = 999_999;

/// The two files of a delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeltaNames {
    /// Such as `NAME-000001.vmdk`.
    pub descriptor: String,
    /// Such as `NAME-000001-delta.vmdk` or `NAME-000001-sesparse.vmdk`.
    pub extent: String,
}

/// The two files of a base disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseNames {
    /// `NAME.vmdk`; further disks `NAME_1.vmdk`, ...
    pub descriptor: String,
    /// `NAME-flat.vmdk`
    pub extent: String,
}

/// Returns the names for the disk at `index` (from 0) of the VM `vm`. Fails with `Invalid` if `vm` cannot be a file
/// name.
pub(crate) fn base_names(vm: &str, index: usize) -> Result<BaseNames> {
    check_name(vm, "VM name", vm)?;
    let stem = if index == 0 { vm.to_owned() } else { format!("{vm}_{index}") };
    Ok(BaseNames { descriptor: format!("{stem}.vmdk"), extent: format!("{stem}-flat.vmdk") })
}

/// Returns the name without directory, `.vmdk` and a delta's number: `web` for `web-000002.vmdk` and for
/// `../x/web.vmdk`.
pub(crate) fn disk_stem(descriptor: &str) -> &str {
    let base = descriptor.rsplit(['/', '\\']).next().unwrap_or(descriptor);
    let stem = match base.len().checked_sub(5).and_then(|cut| base.split_at_checked(cut)) {
        Some((stem, suffix)) if suffix.eq_ignore_ascii_case(".vmdk") => stem,
        _ => base,
    };
    match stem.rsplit_once('-') {
        Some((name, number)) if is_delta_number(number) && !name.is_empty() => name,
        _ => stem,
    }
}

fn is_delta_number(digits: &str) -> bool {
    digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the names with the first free number for a new delta of the disk of `leaf`. Numbers have no order, and are
/// reused once free. `taken` returns whether a file of that name exists; a number is free if neither of its files does.
pub(crate) fn next_delta_names(
    leaf: &str,
    kind: ExtentKind,
    taken: impl Fn(&str) -> bool,
) -> Result<DeltaNames> {
    let stem = disk_stem(leaf);
    for number in 1..=DELTA_NUMBER_MAX {
        let descriptor = format!("{stem}-{number:06}.vmdk");
        let extents = ["delta", "sesparse"].map(|end| format!("{stem}-{number:06}-{end}.vmdk"));
        if !taken(&descriptor) && !extents.iter().any(|extent| taken(extent)) {
            let [delta, sesparse] = extents;
            let extent = if kind == ExtentKind::SeSparse { sesparse } else { delta };
            return Ok(DeltaNames { descriptor, extent });
        }
    }
    let cause = format!("all delta numbers up to {DELTA_NUMBER_MAX} of {} are taken", shown(stem));
    Err(Error::refused(leaf, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_disks_are_numbered_from_the_second() {
        let names = |index| base_names("web", index).unwrap();
        assert_eq!(names(0).descriptor, "web.vmdk");
        assert_eq!(names(0).extent, "web-flat.vmdk");
        assert_eq!(names(11).extent, "web_11-flat.vmdk");
        assert!(base_names("../x", 0).is_err());
    }

    #[test]
    fn stems() {
        let table = [
            ("web.vmdk", "web"),
            ("web-000002.vmdk", "web"),
            ("/vmfs/volumes/x/web_1-000010.vmdk", "web_1"),
            ("F:\\vm\\win.VMDK", "win"),
            ("-000001.vmdk", "-000001"),
            ("web-00001.vmdk", "web-00001"),
            ("a", "a"),
            ("", ""),
        ];
        for (descriptor, stem) in table {
            assert_eq!(disk_stem(descriptor), stem, "{descriptor}");
        }
    }

    #[test]
    fn the_first_number_with_neither_file_is_taken() {
        let present = ["web-000001.vmdk", "web-000002-delta.vmdk", "web-000004-sesparse.vmdk"];
        let next = |leaf| {
            next_delta_names(leaf, ExtentKind::VmfsSparse, |name| present.contains(&name)).unwrap().descriptor
        };
        assert_eq!(next("web.vmdk"), "web-000003.vmdk");
        assert_eq!(next("web-000001.vmdk"), "web-000003.vmdk");
        assert_eq!(next("db.vmdk"), "db-000001.vmdk");
        let names = next_delta_names("web.vmdk", ExtentKind::SeSparse, |_| false).unwrap();
        assert_eq!(names.extent, "web-000001-sesparse.vmdk");
        assert!(next_delta_names("web.vmdk", ExtentKind::VmfsSparse, |_| true).is_err());
    }
}
