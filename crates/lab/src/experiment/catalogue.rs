//! The experiments that ship, and the look-up of an experiment.

use std::path::Path;

use blk::{Error, ErrorKind, Result};

use super::{Experiment, parse};

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../experiments/", $name, ".toml")))),*]
    };
}

/// The experiments that ship, in the order of their articles.
const SHIPPED: &[(&str, &str)] = embedded![
    "zandboer-paced",
    "zandboer-saturated",
    "zandboer-linked-clone",
    "zandboer-clone-separate-lun",
    "zandboer-separate-lun",
    "zandboer-delta-on-ssd",
    "zandboer-more-disks",
    "zandboer-ssd-mirror",
    "topry-raid5",
    "sightler-5.5",
    "sightler-6.0",
    "sightler-writes",
    "powerstore-vmfs",
    "powerstore-vvol",
    "v7000-sas",
    "v7000-tiered",
    "v7000-full-ssd",
    "v7000-ssd-write-cache",
    "backup-window",
    "chain-depth",
    "forty-snapshots",
    "elatov-san",
    "elatov-local",
    "garcia-qcow2",
    "garcia-subclusters",
    "theurer-lvm",
];

/// Largest experiment file that is read, bytes; the longest one that ships has 10 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(name, _)| *name)
}

/// Returns all experiments that ship.
pub fn shipped() -> Result<Vec<Experiment>> {
    SHIPPED.iter().map(|(name, text)| parse(name, &format!("{name}.toml"), text)).collect()
}

/// Returns the experiment of that name, or the one in the file at that path.
pub fn find(name: &str) -> Result<Experiment> {
    if let Some((name, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        return parse(name, &format!("{name}.toml"), text);
    }
    let path = Path::new(name);
    let looks_like_path = name.contains('/') || path.extension().is_some_and(|e| e == "toml");
    if !looks_like_path {
        let names: Vec<&str> = names().collect();
        let cause = format!(
            "no experiment of this name ships; there are {}; a file needs its .toml",
            names.join(", ")
        );
        return Err(Error::not_found(name, cause));
    }
    let text = read(path).map_err(|e| Error::new(kind(&e), name, e.to_string()))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&stem, name, &text)
}

fn read(path: &Path) -> std::io::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > FILE_BYTES_MAX {
        let cause = format!("{bytes} bytes: an experiment has at most {FILE_BYTES_MAX}");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, cause));
    }
    std::fs::read_to_string(path)
}

fn kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::InvalidData => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Use;

    #[test]
    fn all_that_ship_are_read_and_lead_back_to_their_sources() {
        let shipped = shipped().expect("every file parses");
        assert_eq!(shipped.len(), 26);
        for experiment in &shipped {
            assert!(!experiment.source.is_empty() && !experiment.published.is_empty(), "{}", experiment.name);
            if let Some(other) = &experiment.fitted_on {
                let mut cells = find(other).unwrap().published.into_iter();
                let has_baseline = cells.any(|cell| cell.r#use == Use::Baseline && cell.value.is_some());
                assert!(has_baseline, "{} is fitted on {other}", experiment.name);
            }
        }
    }

    /// The figures that are counted, which `lab sensitivity` justifies: not those that are put in, set by a timer, equal
    /// to their baseline, or implied by one constant, and not single stuns.
    #[test]
    fn the_counted_figures_are_these() {
        let count = |name: &str, r#use: Use| {
            let published = find(name).unwrap().published;
            published.iter().filter(|cell| cell.r#use == r#use && cell.value.is_some()).count()
        };
        let expected = [
            ("zandboer-paced", 3, 0),
            ("zandboer-saturated", 3, 6),
            ("sightler-5.5", 0, 1),
            ("sightler-6.0", 0, 4),
            ("powerstore-vmfs", 1, 1),
            ("powerstore-vvol", 1, 0),
            ("v7000-sas", 1, 2),
            ("v7000-tiered", 1, 1),
        ];
        for (name, baseline, predict) in expected {
            assert_eq!(
                (count(name, Use::Baseline), count(name, Use::Predict)),
                (baseline, predict),
                "{name}"
            );
        }
    }

    #[test]
    fn the_lines_of_the_stuns_add_up_to_what_is_printed_for_all() {
        for (name, sum) in [("sightler-5.5", 12_648_914.0), ("sightler-6.0", 827_626.0)] {
            let published = find(name).unwrap().published;
            let lines = published.iter().filter(|cell| cell.stun.is_some());
            assert_eq!(lines.filter_map(|cell| cell.value).sum::<f64>(), sum, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_that_ship() {
        let error = find("zandbor").unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.cause.contains("zandboer-paced"), "{error}");
        assert_eq!(find("nowhere/my.toml").unwrap_err().kind, ErrorKind::NotFound);
    }
}
