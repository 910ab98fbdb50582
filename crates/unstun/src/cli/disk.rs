//! Disks in the notation of the command line: `SIZE[,mode=MODE][,dir=DIR]`.

use std::str::FromStr;

use api::units;
use api::{DiskCreate, DiskMode};
use clap::ValueEnum;

const EXPECTED: &str = "expected SIZE[,mode=MODE][,dir=DIR], such as 20G or 20G,mode=independent-persistent";

/// The value of one `--disk`: several where sizes follow one another, as in `20G,200G`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSpecs(pub Vec<DiskCreate>);

/// The value that adds one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSpec(pub DiskCreate);

impl FromStr for DiskSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let DiskSpecs(mut specs) = text.parse()?;
        match (specs.pop(), specs.is_empty()) {
            (Some(disk), true) => Ok(Self(disk)),
            _ => Err(format!("{text:?}: several disks; {EXPECTED}")),
        }
    }
}

impl FromStr for DiskSpecs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut specs: Vec<DiskCreate> = Vec::new();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                specs.push(DiskCreate::new(units::parse_disk_size(part)?));
                continue;
            };
            let spec =
                specs.last_mut().ok_or_else(|| format!("{text:?}: no size before {key}=; {EXPECTED}"))?;
            set(spec, key, value)?;
        }
        Ok(Self(specs))
    }
}

fn set(disk: &mut DiskCreate, key: &str, value: &str) -> Result<(), String> {
    match key {
        "mode" => disk.mode = parse_mode(value)?,
        "dir" if !value.is_empty() => {
            disk.dir = Some(std::path::absolute(value).map_err(|e| format!("dir={value}: {e}"))?);
        }
        _ => return Err(format!("{key}={value}: {EXPECTED}")),
    }
    Ok(())
}

fn parse_mode(text: &str) -> Result<DiskMode, String> {
    DiskMode::from_str(text, false).map_err(|_| {
        let words: Vec<_> = DiskMode::value_variants().iter().map(|mode| mode.word()).collect();
        format!("mode={text}: expected {}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn parse(text: &str) -> Result<Vec<(u64, DiskMode, Option<PathBuf>)>, String> {
        let specs: DiskSpecs = text.parse()?;
        Ok(specs.0.into_iter().map(|spec| (spec.size_bytes, spec.mode, spec.dir)).collect())
    }

    #[test]
    fn a_size_starts_a_disk_and_what_follows_is_about_it() {
        use DiskMode::*;
        const G: u64 = 1 << 30;
        for (text, expected) in [
            ("20G", vec![(20 * G, Persistent, None)]),
            ("20G,200G", vec![(20 * G, Persistent, None), (200 * G, Persistent, None)]),
            ("1G,mode=independent-persistent", vec![(G, IndependentPersistent, None)]),
            ("1G,dir=/fast,mode=persistent", vec![(G, Persistent, Some("/fast".into()))]),
            (
                "1G,mode=independent-nonpersistent,2G,dir=/slow",
                vec![(G, IndependentNonpersistent, None), (2 * G, Persistent, Some("/slow".into()))],
            ),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        assert!(parse("1G,dir=here").unwrap()[0].2.as_ref().unwrap().is_absolute());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_was_expected() {
        for (text, word) in [
            ("", "such as 20G"),
            ("mode=persistent", "no size before mode="),
            ("1G,", "such as 20G"),
            ("1G,mode=fast", "independent-persistent"),
            ("1G,dir=", "SIZE[,mode=MODE]"),
            ("1G,cache=none", "SIZE[,mode=MODE]"),
            ("20GB", "such as 20G"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!("1G,2G".parse::<DiskSpec>().unwrap_err().contains("several"));
    }
}
