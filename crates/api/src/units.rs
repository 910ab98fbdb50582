//! Sizes, rates and durations in the form that people write and read. All prefixes are powers of 1024.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Every size of a disk is a whole number of sectors.
const SECTOR: u64 = blk::SECTOR;
/// Largest disk: 64 TiB, 2 TiB more than VMware's. A format may allow less; the engine then reports its limit.
pub const DISK_BYTES_MAX: u64 = 64 << 40;

const SUFFIXES: [(char, u32); 6] = [('B', 0), ('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Parses `20G`, `512M`, `1T`, `20GiB` or plain bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let expected = || {
        format!(
            "{text:?}: expected a whole number of bytes, or one with K, M, G or T (powers of 1024), such as 20G"
        )
    };
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    let shift = suffix_shift(suffix).ok_or_else(expected)?;
    if digits.is_empty() {
        return Err(expected());
    }
    let too_large = || format!("{text:?}: more bytes than 64 bits can count");
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// Returns the suffix as a power of two. The function refuses "GB" rather than guess, because some people mean 1000.
fn suffix_shift(suffix: &str) -> Option<u32> {
    let upper = suffix.to_ascii_uppercase();
    let mut chars = upper.chars();
    let Some(unit) = chars.next() else { return Some(0) };
    let (_, shift) = SUFFIXES.into_iter().find(|(c, _)| *c == unit)?;
    match chars.as_str() {
        "" => Some(shift),
        "IB" if shift > 0 => Some(shift),
        _ => None,
    }
}

/// Parses a disk's size: a multiple of 512 bytes, not zero, at most 64 TiB.
pub fn parse_disk_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    check_disk_size(bytes)?;
    Ok(bytes)
}

pub fn check_disk_size(bytes: u64) -> Result<(), String> {
    if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
        return Err(format!("disk of {bytes} bytes: expected a multiple of 512, at least 512"));
    }
    if bytes > DISK_BYTES_MAX {
        return Err(format!(
            "disk of {}: expected at most {}",
            format_bytes(bytes),
            format_bytes(DISK_BYTES_MAX)
        ));
    }
    Ok(())
}

/// Parses a rate in bytes per second: `200M`, `200M/s`; `none` lifts a limit.
pub fn parse_rate(text: &str) -> Result<Option<u64>, String> {
    if matches!(text, "none" | "unlimited") {
        return Ok(None);
    }
    let bytes = parse_bytes(text.strip_suffix("/s").unwrap_or(text))
        .map_err(|e| format!("{e}; 200M means 200 MiB per second, none lifts the limit"))?;
    if bytes == 0 {
        return Err("a job with a rate of 0 would never end: expected more, or use `job pause`".to_owned());
    }
    Ok(Some(bytes))
}

/// Parses a time such as `90m`, `12h` or `30d`, in seconds.
pub fn parse_duration_s(text: &str) -> Result<u64, String> {
    let expected = || format!("{text:?}: expected a number and s, m, h or d, such as 12h or 30d");
    let unit = text.chars().last().ok_or_else(expected)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(expected()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| expected())?;
    number.checked_mul(seconds).filter(|&s| s > 0).ok_or_else(expected)
}

/// Returns a time as the shortest text that [`parse_duration_s`] reads as exactly that; empty for none.
pub fn short_duration(seconds: u64) -> String {
    let units = [(24 * 3600, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let unit = units.into_iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    unit.map_or(String::new(), |(unit, letter)| format!("{}{letter}", seconds / unit))
}

/// Parses a time in the past: as RFC 3339 writes it, or how long ago it is, such as `12h`.
pub fn parse_past(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago_s) = parse_duration_s(text) {
        let ago = i64::try_from(ago_s).ok().map(SignedDuration::from_secs);
        let at = ago.and_then(|ago| Timestamp::now().checked_sub(ago).ok());
        return at.ok_or_else(|| format!("{text:?}: so long ago there were no times"));
    }
    text.parse().map_err(|_| {
        format!("{text:?}: expected a time such as 2026-11-27T12:00:00Z, or how long ago it is, such as 12h or 30d")
    })
}

/// Formats a size, such as `20 GiB`, `1.50 TiB` or `512 B`.
pub fn format_bytes(bytes: u64) -> String {
    let (mut unit, mut shift) = ("B", 0);
    for (name, candidate) in [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)] {
        // A size that would be shown as 1024.00 of the smaller unit (from half a hundredth below) is shown as 1.00 of
        // this one.
        if bytes < (1u64 << candidate) - (1u64 << candidate) / 204_800 {
            break;
        }
        (unit, shift) = (name, candidate);
    }
    if bytes & ((1 << shift) - 1) == 0 {
        return format!("{} {unit}", bytes >> shift);
    }
    format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64)
}

pub fn format_rate(bytes_per_s: u64) -> String {
    format!("{}/s", format_bytes(bytes_per_s))
}

/// Formats a time, such as `412 us`, `3.20 ms` or `12.65 s`. A measured 0 was shorter than the clock's resolution.
pub fn format_us(us: u64) -> String {
    match us {
        0 => "under 1 us".to_owned(),
        1..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Formats a duration, such as `8 s`, `3 min 20 s` or `2 h 5 min`.
pub fn format_seconds(s: u64) -> String {
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// Formats an age, such as `30 s ago`, `3 h ago` or `12 days ago`. A future time, after a clock was put back, is `just
/// now`.
pub fn format_age(age_s: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    match age_s {
        ..1 => "just now".to_owned(),
        1..MINUTE => format!("{age_s} s ago"),
        MINUTE..HOUR => format!("{} min ago", age_s / MINUTE),
        HOUR..DAY => format!("{} h ago", age_s / HOUR),
        _ if age_s < 2 * DAY => "1 day ago".to_owned(),
        _ if age_s < 2 * YEAR => format!("{} days ago", age_s / DAY),
        _ => format!("{} years ago", age_s / YEAR),
    }
}

/// Returns the sum of sizes from untrusted files; a sum that does not fit is the largest number.
pub fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

pub fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("20G", 20 << 30),
            ("512M", 512 << 20),
            ("1T", 1 << 40),
            ("1t", 1 << 40),
            ("20GiB", 20 << 30),
            ("4096", 4096),
            ("4096B", 4096),
            ("64k", 64 << 10),
            ("64T", DISK_BYTES_MAX),
        ] {
            assert_eq!(parse_disk_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        for text in ["", "G", "-1G", "1.5G", "20GB", "20 G", "0x10", "1GG", "iB", "1iB", "+5", "\u{0663}G"] {
            assert!(parse_bytes(text).unwrap_err().contains("such as 20G"), "{text}");
        }
        assert!(parse_bytes("99999999999999999999").unwrap_err().contains("64 bits"));
        assert!(parse_bytes("99999999P").unwrap_err().contains("64 bits"));
        assert!(parse_disk_size("1000").unwrap_err().contains("multiple of 512"));
        assert!(parse_disk_size("0").unwrap_err().contains("multiple of 512"));
        assert!(parse_disk_size("65T").unwrap_err().contains("at most 64 TiB"));
    }

    #[test]
    fn a_past_time_is_named_or_how_long_ago_it_is() {
        let named = parse_past("2026-11-27T12:00:00Z").unwrap();
        assert_eq!(named.as_second(), 1_795_780_800);
        let begin = parse_past("12h").unwrap();
        assert_eq!(Timestamp::now().duration_since(begin).as_secs() / 60, 12 * 60);
        for text in ["", "yesterday", "12", "-1h", "99999999999999d", "2026-11-27"] {
            assert!(parse_past(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_per_second_and_may_be_lifted() {
        assert_eq!(parse_rate("200M"), Ok(Some(200 << 20)));
        assert_eq!(parse_rate("200M/s"), Ok(Some(200 << 20)));
        assert_eq!(parse_rate("none"), Ok(None));
        assert!(parse_rate("0").is_err());
        assert!(parse_rate("fast").is_err());
    }

    #[test]
    fn sums_of_what_files_say_do_not_overflow() {
        assert_eq!(total([1 << 63, 1 << 63, 7].into_iter()), u64::MAX);
        assert_eq!(total([1, 2].into_iter()), 3);
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(20 << 30), "20 GiB");
        assert_eq!(format_bytes(3 << 29), "1.50 GiB");
        assert_eq!(format_bytes((1 << 30) - (1 << 20)), "1023 MiB");
        assert_eq!(format_bytes((1 << 30) - (8 << 10)), "1023.99 MiB");
        assert_eq!(format_bytes((1 << 30) - (4 << 10)), "1.00 GiB");
        assert_eq!(format_bytes((1 << 10) - 1), "1023 B");
        assert_eq!(format_bytes(u64::MAX), "16384.00 PiB");
        assert_eq!(format_us(412), "412 us");
        assert_eq!(format_us(12_650_000), "12.65 s");
        assert_eq!(format_seconds(200), "3 min 20 s");
        assert_eq!(format_seconds(7500), "2 h 5 min");
        for (age_s, text) in [
            (-5, "just now"),
            (59, "59 s ago"),
            (3600, "1 h ago"),
            (100_000, "1 day ago"),
            (864_000, "10 days ago"),
            (100_000_000, "3 years ago"),
        ] {
            assert_eq!(format_age(age_s), text);
        }
    }
}
