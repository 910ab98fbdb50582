//! Limits on the I/O of a VM: the fields, their ranges, and how people read them.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{format_bytes, format_rate};

/// Range of a limit on reads, writes, discards and zeroes per second. Below, a guest's own time limits expire.
pub const IOPS_MIN: u64 = 10;
pub const IOPS_MAX: u64 = 100_000_000;
/// Range of a limit on bytes per second. At the lowest rate, the largest request (32 MiB) takes 8.5 minutes.
pub const BYTES_S_MIN: u64 = 64 << 10;
pub const BYTES_S_MAX: u64 = 1 << 40;
/// Range of the length of a burst in seconds.
pub const BURST_S_MAX: u64 = 3600;
const BURST_S_DEFAULT: u64 = 10;
/// Range of the weight.
pub const WEIGHT_MAX: u64 = 1000;
const WEIGHT_DEFAULT: u64 = 100;

/// Body of `PUT /vms/VM/limits`, which replaces all limits of the VM; part of `vm show`. The limits apply to all clients
/// of all disks and snapshots of the VM together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VmLimits {
    /// Reads, writes, discards and zeroes per second; null for no limit.
    pub iops: Option<u64>,
    /// The higher rate of a burst; null for no burst. Needs `iops`.
    pub iops_burst: Option<u64>,
    /// Bytes of payload of reads and writes per second; null for no limit.
    pub bandwidth_bytes_s: Option<u64>,
    /// The higher rate of a burst; null for no burst. Needs `bandwidth_bytes_s`.
    pub bandwidth_burst_bytes_s: Option<u64>,
    /// Seconds for which the VM may use its burst rates after it was idle.
    pub burst_s: u64,
    /// Share of the core relative to other VMs that wait for it.
    pub weight: u64,
}

impl Default for VmLimits {
    fn default() -> Self {
        VmLimits {
            iops: None,
            iops_burst: None,
            bandwidth_bytes_s: None,
            bandwidth_burst_bytes_s: None,
            burst_s: BURST_S_DEFAULT,
            weight: WEIGHT_DEFAULT,
        }
    }
}

impl VmLimits {
    /// Checks the values. The error names the field, what was found, and what was expected.
    pub fn check(&self) -> Result<(), String> {
        let iops = |name, value: Option<u64>| check_range(name, value, IOPS_MIN, IOPS_MAX, |n| n.to_string());
        let bytes =
            |name, value: Option<u64>| check_range(name, value, BYTES_S_MIN, BYTES_S_MAX, format_rate);
        iops("iops", self.iops)?;
        iops("iops_burst", self.iops_burst)?;
        bytes("bandwidth_bytes_s", self.bandwidth_bytes_s)?;
        bytes("bandwidth_burst_bytes_s", self.bandwidth_burst_bytes_s)?;
        check_burst("iops", self.iops, "iops_burst", self.iops_burst)?;
        let (rate, burst) = (self.bandwidth_bytes_s, self.bandwidth_burst_bytes_s);
        check_burst("bandwidth_bytes_s", rate, "bandwidth_burst_bytes_s", burst)?;
        check_range("burst_s", Some(self.burst_s), 1, BURST_S_MAX, |n| n.to_string())?;
        check_range("weight", Some(self.weight), 1, WEIGHT_MAX, |n| n.to_string())
    }

    /// Returns whether the VM has a limit. A weight is none.
    pub fn is_limited(&self) -> bool {
        self.iops.is_some() || self.bandwidth_bytes_s.is_some()
    }

    /// Returns the limits as a part of a sentence, such as `2000 IOPS (bursts of 5000 for 10 s), 100 MiB/s`; `none` if
    /// nothing is set.
    pub fn describe(&self) -> String {
        let burst = |rate: Option<String>| {
            rate.map_or_else(String::new, |rate| format!(" (bursts of {rate} for {} s)", self.burst_s))
        };
        let iops = self.iops.map(|n| format!("{n} IOPS{}", burst(self.iops_burst.map(|n| n.to_string()))));
        let bytes = self
            .bandwidth_bytes_s
            .map(|n| format!("{}{}", format_rate(n), burst(self.bandwidth_burst_bytes_s.map(format_rate))));
        let weight = (self.weight != WEIGHT_DEFAULT).then(|| format!("weight {}", self.weight));
        let parts: Vec<String> = [iops, bytes, weight].into_iter().flatten().collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    }
}

fn check_range(
    name: &str,
    value: Option<u64>,
    least: u64,
    most: u64,
    format: fn(u64) -> String,
) -> Result<(), String> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(format!("{name}: found {value}, expected {} to {}", format(least), format(most)))
        }
        _ => Ok(()),
    }
}

fn check_burst(
    limit_name: &str,
    limit: Option<u64>,
    burst_name: &str,
    burst: Option<u64>,
) -> Result<(), String> {
    match (limit, burst) {
        (None, Some(burst)) => {
            Err(format!("{burst_name}: found {burst} without {limit_name}, expected both or no burst"))
        }
        (Some(limit), Some(burst)) if burst <= limit => {
            Err(format!("{burst_name}: found {burst}, expected more than {limit_name} ({limit})"))
        }
        _ => Ok(()),
    }
}

/// Parses a limit on operations per second: a whole number; `none` removes the limit.
pub fn parse_iops(text: &str) -> Result<Option<u64>, String> {
    parse_limit(
        text,
        IOPS_MIN..=IOPS_MAX,
        |n| n.to_string(),
        |text| text.parse().map_err(|_| format!("{text:?}: expected a whole number such as 2000, or none")),
    )
}

/// Parses a limit in bytes per second: `100M`, `100M/s`; `none` removes the limit.
pub fn parse_bandwidth(text: &str) -> Result<Option<u64>, String> {
    parse_limit(text, BYTES_S_MIN..=BYTES_S_MAX, format_bytes, |text| {
        crate::units::parse_bytes(text.strip_suffix("/s").unwrap_or(text))
            .map_err(|e| format!("{e}; 100M means 100 MiB per second, none removes the limit"))
    })
}

fn parse_limit(
    text: &str,
    range: RangeInclusive<u64>,
    format: fn(u64) -> String,
    parse: impl Fn(&str) -> Result<u64, String>,
) -> Result<Option<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let value = parse(text)?;
    if !range.contains(&value) {
        let (least, most) = (format(*range.start()), format(*range.end()));
        return Err(format!("found {value}, expected {least} to {most}, or none"));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_well() {
        let limits = VmLimits { iops: Some(2000), bandwidth_bytes_s: Some(100 << 20), ..VmLimits::default() };
        assert_eq!(limits.describe(), "2000 IOPS, 100 MiB/s");
        let limits = VmLimits { iops_burst: Some(5000), weight: 500, ..limits };
        assert_eq!(limits.describe(), "2000 IOPS (bursts of 5000 for 10 s), 100 MiB/s, weight 500");
        assert_eq!(VmLimits::default().describe(), "none");
    }

    #[test]
    fn values_out_of_range_are_refused_with_field_found_and_expected() {
        let sound = VmLimits {
            iops: Some(2000),
            iops_burst: Some(5000),
            bandwidth_bytes_s: Some(100 << 20),
            bandwidth_burst_bytes_s: Some(200 << 20),
            burst_s: 10,
            weight: 100,
        };
        assert_eq!(sound.check(), Ok(()));
        for (limits, expected) in [
            (VmLimits { iops: Some(0), ..sound }, "iops: found 0, expected 10 to 100000000"),
            (
                VmLimits { iops_burst: Some(u64::MAX), ..sound },
                "iops_burst: found 18446744073709551615, expected 10",
            ),
            (
                VmLimits { iops_burst: Some(2000), ..sound },
                "iops_burst: found 2000, expected more than iops (2000)",
            ),
            (VmLimits { iops: None, ..sound }, "iops_burst: found 5000 without iops"),
            (
                VmLimits { bandwidth_bytes_s: Some(1), ..sound },
                "bandwidth_bytes_s: found 1, expected 64 KiB/s to 1 TiB/s",
            ),
            (
                VmLimits { bandwidth_bytes_s: None, ..sound },
                "bandwidth_burst_bytes_s: found 209715200 without",
            ),
            (VmLimits { burst_s: 0, ..sound }, "burst_s: found 0, expected 1 to 3600"),
            (VmLimits { weight: 1001, ..sound }, "weight: found 1001, expected 1 to 1000"),
        ] {
            let error = limits.check().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn texts_of_limits_are_numbers_in_range_or_none() {
        assert_eq!(parse_iops("2000"), Ok(Some(2000)));
        assert_eq!(parse_iops("none"), Ok(None));
        assert_eq!(parse_bandwidth("100M"), Ok(Some(100 << 20)));
        assert_eq!(parse_bandwidth("100M/s"), Ok(Some(100 << 20)));
        assert_eq!(parse_bandwidth("none"), Ok(None));
        for text in ["0", "9", "-1", "2k", "1e3", "", "99999999999999999999"] {
            assert!(parse_iops(text).unwrap_err().contains("expected"), "{text}");
        }
        for text in ["0", "1K", "2T", "fast", "", "99999999999999999999"] {
            assert!(parse_bandwidth(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_bandwidth("2T").unwrap_err(),
            "found 2199023255552, expected 64 KiB to 1 TiB, or none"
        );
    }
}
