//! Limits on the I/O of a VM: the file in its home's `.unstun` folder, and their change while clients are connected.
//!
//! `docs/formats/vmdk.md` describes the file ("Limits of a VM").

use std::rc::Rc;

use api::VmLimits;
use api::error::Result;
use api::name::VmName;
use blk::dir::OWN_FOLDER;
use blk::{Dir, Error, ErrorKind};
use export::{Burst, IoLimits, RateLimit};

use crate::daemon::state::Daemon;
use crate::daemon::vm::home_folder::HomeFolder;
use crate::daemon::vm::paths;

/// File with a line `NAME NUMBER` for each limit.
const LIMITS_NAME: &str = "limits";
/// Maximum size of the file in bytes. The lines that this version writes have less than 200.
const LIMITS_BYTES_MAX: u64 = 4096;

/// Names of the lines that this version reads and writes.
const NAMES: [&str; 6] = ["iops", "iops-burst", "bandwidth", "bandwidth-burst", "burst-seconds", "weight"];

/// Content of the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredLimits {
    pub limits: VmLimits,
    /// Why the limits are not as the file says, if they are not.
    pub notice: Option<String>,
}

/// Returns the limits of a home. A file that is damaged, or that a newer version has written, does not keep the VM from
/// being served: the notice says what does not apply.
pub(crate) async fn read(home: &HomeFolder) -> blk::Result<StoredLimits> {
    if !home.has(LIMITS_NAME) {
        return Ok(StoredLimits::default());
    }
    let own = &home.own;
    match text(own).await.and_then(|text| parse(&own.path_of(LIMITS_NAME), &text)) {
        Err(error) if error.kind == ErrorKind::Damaged => {
            let remedy = "the VM has no limits until `unstun vm set` sets them again";
            Ok(StoredLimits { notice: Some(format!("{error}; {remedy}")), ..StoredLimits::default() })
        }
        stored => stored,
    }
}

/// Copies the limits of a home to another one, with the lines of a newer version. Durable when the call returns.
pub(crate) async fn copy(from: &Dir, to: &Dir) -> blk::Result<()> {
    match text_or_nothing(from).await? {
        text if text.is_empty() => Ok(()),
        text => to.replace_file(LIMITS_NAME, text.as_bytes()).await,
    }
}

/// Durably records the limits. Lines of a newer version stay.
async fn write(own: &Dir, limits: &VmLimits) -> blk::Result<()> {
    let text = format(limits, &text_or_nothing(own).await?);
    if !text.is_empty() {
        return own.replace_file(LIMITS_NAME, text.as_bytes()).await;
    }
    own.unlink_if_present(LIMITS_NAME).await?;
    own.sync().await
}

async fn text(own: &Dir) -> blk::Result<String> {
    match own.read_file(LIMITS_NAME, LIMITS_BYTES_MAX).await {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

/// Returns the text, or an empty one where the file is too large to be one of limits.
async fn text_or_nothing(own: &Dir) -> blk::Result<String> {
    match text(own).await {
        Err(e) if e.kind == ErrorKind::Damaged => Ok(String::new()),
        text => text,
    }
}

fn parse(place: &str, text: &str) -> blk::Result<StoredLimits> {
    let mut limits = VmLimits::default();
    let mut others = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        if !NAMES.contains(&name) {
            others.push(name);
            continue;
        }
        let number = value.parse().map_err(|_| {
            Error::damaged(place, format!("{name}: found {value:?}, expected a whole number"))
        })?;
        match name {
            "iops" => limits.iops = Some(number),
            "iops-burst" => limits.iops_burst = Some(number),
            "bandwidth" => limits.bandwidth_bytes_s = Some(number),
            "bandwidth-burst" => limits.bandwidth_burst_bytes_s = Some(number),
            "burst-seconds" => limits.burst_s = number,
            _ => limits.weight = number,
        }
    }
    limits.check().map_err(|cause| Error::damaged(place, cause))?;
    let notice = (!others.is_empty()).then(|| {
        let others = others.join(", ");
        format!("{place}: this version of unstun does not have the limits {others:?}; they do not apply")
    });
    Ok(StoredLimits { limits, notice })
}

/// Returns the new content of the file that has the content `before`. Values that are not set have no line.
fn format(limits: &VmLimits, before: &str) -> String {
    let default = VmLimits::default();
    let values = [
        limits.iops,
        limits.iops_burst,
        limits.bandwidth_bytes_s,
        limits.bandwidth_burst_bytes_s,
        (limits.burst_s != default.burst_s).then_some(limits.burst_s),
        (limits.weight != default.weight).then_some(limits.weight),
    ];
    let own = NAMES.iter().zip(values).filter_map(|(name, value)| Some(format!("{name} {}\n", value?)));
    let is_own = |line: &&str| NAMES.contains(&line.split(' ').next().unwrap_or(line));
    let others = before.lines().filter(|line| !is_own(line)).map(|line| format!("{line}\n"));
    own.chain(others).collect()
}

/// Converts limits whose values have been checked.
pub(crate) fn io_limits(limits: &VmLimits) -> IoLimits {
    let seconds = u32::try_from(limits.burst_s).unwrap_or(u32::MAX);
    let limit = |rate: Option<u64>, burst: Option<u64>| {
        rate.map(|rate| RateLimit { rate, burst: burst.map(|rate| Burst { rate, seconds }) })
    };
    IoLimits {
        ios: limit(limits.iops, limits.iops_burst),
        bytes: limit(limits.bandwidth_bytes_s, limits.bandwidth_burst_bytes_s),
        weight: u32::try_from(limits.weight).unwrap_or(u32::MAX),
    }
}

impl Daemon {
    /// Replaces the limits of a VM. They apply at once, to requests that wait too.
    pub(crate) async fn vm_set_limits(self: &Rc<Self>, vm: &VmName, limits: VmLimits) -> Result<api::Vm> {
        let entry = self.entry_to_change(vm.as_str())?;
        // Two changes at once must end with the same limits in the file and in force.
        let claim = self.claim(vm.as_str())?;
        let write = async || {
            let own = paths::open_path(&self.env, &entry.home).await?.open_dir(OWN_FOLDER, true).await?;
            write(&own, &limits).await
        };
        self.with_reserve(&entry.datastore, write).await?;
        entry.limits.set(limits);
        entry.running.set_limits(io_limits(&limits)).await;
        drop(claim);
        self.note(&entry, &format!("limits from now on: {}", limits.describe()));
        self.show(&entry).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: VmLimits = VmLimits {
        iops: Some(2000),
        iops_burst: Some(5000),
        bandwidth_bytes_s: Some(100 << 20),
        bandwidth_burst_bytes_s: None,
        burst_s: 20,
        weight: 500,
    };

    #[test]
    fn what_is_written_is_read_again() {
        for limits in [LIMITS, VmLimits::default(), VmLimits { burst_s: 10, weight: 100, ..LIMITS }] {
            let text = format(&limits, "");
            assert_eq!(parse("limits", &text).unwrap(), StoredLimits { limits, notice: None }, "{text}");
        }
        assert_eq!(format(&VmLimits::default(), "iops 5\n"), "");
    }

    #[test]
    fn the_lines_of_a_newer_version_stay_and_are_named() {
        let text = format(&LIMITS, "iops 7\nlatency-us 400\nweight x\nfuture\n");
        assert!(text.ends_with("weight 500\nlatency-us 400\nfuture\n"), "{text}");
        let read = parse("web/.unstun/limits", &text).unwrap();
        assert_eq!(read.limits, LIMITS);
        assert!(read.notice.unwrap().contains("web/.unstun/limits: this version of unstun does not have"));
        assert_eq!(format(&VmLimits::default(), &text), "latency-us 400\nfuture\n");
    }

    #[test]
    fn damage_is_named_with_field_found_and_expected() {
        for (text, expected) in [
            ("iops", "iops: found \"\", expected a whole number"),
            ("iops -1", "iops: found \"-1\""),
            ("weight 99999999999999999999", "weight: found"),
            ("iops 0", "iops: found 0, expected 10 to"),
            ("iops-burst 50", "without iops"),
        ] {
            let error = parse("limits", text).unwrap_err();
            assert!(error.kind == ErrorKind::Damaged && error.cause.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_burst_has_its_length() {
        let limits = io_limits(&LIMITS);
        let burst = Some(Burst { rate: 5000, seconds: 20 });
        assert_eq!(limits.ios, Some(RateLimit { rate: 2000, burst }));
        assert_eq!((limits.bytes, limits.weight), (Some(RateLimit { rate: 100 << 20, burst: None }), 500));
        let none = io_limits(&VmLimits::default());
        assert_eq!(none, IoLimits::default(), "the two defaults agree");
    }
}
