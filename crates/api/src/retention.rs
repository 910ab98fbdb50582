//! Which of a VM's snapshots, or backups, stay.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{parse_duration_s, short_duration};

/// Maximum number that a rule keeps: a year of hours.
const KEPT_MAX: u32 = 10_000;
/// Maximum of `min_age_s`: a hundred years.
const AGE_S_MAX: u64 = 100 * 366 * 24 * 3600;
/// The words for everything, and before an age.
const ALL: &str = "all";
const YOUNGER: &str = "younger than ";

/// What stays of a VM's snapshots or backups: each that one of the rules keeps. A rule about hours, days, weeks, months or years keeps
/// the last snapshot of each of so many of them that have one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    pub last: u32,
    pub hourly: u32,
    pub daily: u32,
    pub weekly: u32,
    pub monthly: u32,
    pub yearly: u32,
    /// Age in seconds below which no snapshot is removed.
    pub min_age_s: u64,
    /// Whether every snapshot is kept.
    pub all: bool,
}

impl Retention {
    /// Returns the rules that keep a number of snapshots, with their names.
    pub fn rules(&self) -> [(&'static str, u32); 6] {
        [
            ("last", self.last),
            ("hourly", self.hourly),
            ("daily", self.daily),
            ("weekly", self.weekly),
            ("monthly", self.monthly),
            ("yearly", self.yearly),
        ]
    }

    /// Returns the rule that keeps everything.
    pub fn all() -> Retention {
        Retention { all: true, ..Retention::default() }
    }

    /// Fails with the field, after a dot, and what was expected.
    pub(crate) fn check(&self) -> Result<(), String> {
        let rules = self.rules();
        if let Some((name, count)) = rules.into_iter().find(|(_, count)| *count > KEPT_MAX) {
            return Err(format!(".{name}: found {count}, expected at most {KEPT_MAX}"));
        }
        if self.min_age_s > AGE_S_MAX {
            return Err(format!(".min_age_s: found {}, expected at most {AGE_S_MAX}", self.min_age_s));
        }
        let keeps = rules.into_iter().any(|(_, count)| count > 0);
        match (self.all, keeps) {
            (false, false) => Err(": expected a rule, such as last: 7, or all: true".to_owned()),
            (true, true) => Err(": expected rules or all: true, not both".to_owned()),
            _ => Ok(()),
        }
    }
}

/// In words that are read again, such as `7 daily, 4 weekly, younger than 12h`.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.rules().into_iter().filter(|(_, count)| *count > 0);
        let mut parts: Vec<_> = counts.map(|(name, count)| format!("{count} {name}")).collect();
        if self.all {
            parts.push(ALL.to_owned());
        }
        if self.min_age_s > 0 {
            parts.push(format!("{YOUNGER}{}", short_duration(self.min_age_s)));
        }
        f.write_str(&parts.join(", "))
    }
}

impl FromStr for Retention {
    type Err = String;

    fn from_str(text: &str) -> Result<Retention, String> {
        let mut read = Retention::default();
        for part in text.split(',').map(str::trim) {
            if let Some(age) = part.strip_prefix(YOUNGER) {
                read.min_age_s = parse_duration_s(age)?;
                continue;
            }
            let (count, rule) = part.split_once(' ').unwrap_or(("", part));
            let field = match rule.trim() {
                "last" => &mut read.last,
                "hourly" => &mut read.hourly,
                "daily" => &mut read.daily,
                "weekly" => &mut read.weekly,
                "monthly" => &mut read.monthly,
                "yearly" => &mut read.yearly,
                ALL if count.is_empty() => {
                    read.all = true;
                    continue;
                }
                _ => return Err(unexpected(part)),
            };
            *field = count.parse().map_err(|_| unexpected(part))?;
        }
        read.check().map_err(|_| unexpected(text))?;
        Ok(read)
    }
}

fn unexpected(found: &str) -> String {
    format!("{found:?}: expected rules such as \"14 daily, 8 weekly, younger than 12h\", or all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_written() {
        let rules = Retention { last: 3, daily: 7, yearly: 2, min_age_s: 36 * 3600, ..Retention::default() };
        assert_eq!(rules.to_string(), "3 last, 7 daily, 2 yearly, younger than 36h");
        for one in [rules, Retention::all(), Retention { min_age_s: 90, ..Retention::all() }] {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        for text in ["", "7", "daily", "x daily", "7 nights", "all, 7 daily", "younger than 3h", "20000 last"]
        {
            let error = text.parse::<Retention>().unwrap_err();
            assert!(error.contains("expected rules such as"), "{text}: {error}");
        }
    }
}
