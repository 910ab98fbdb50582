//! Disks in the notation of the command line: `SIZE[,mode=MODE][,dir=DIR]`, and `from=IMAGE[,size=SIZE][,copy=no]` for
//! disks over an image.

use std::path::PathBuf;
use std::str::FromStr;

use api::units;
use api::{DiskCreate, DiskFrom, DiskMode, ImageFormat};
use clap::ValueEnum;

const EXPECTED: &str = "expected SIZE[,mode=MODE][,dir=DIR], such as 20G or 20G,mode=independent-persistent, or \
                        from=IMAGE[,size=SIZE][,format=FORMAT][,copy=no][,verify=no], such as from=/images/web.vmdk";

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
            if key == "from" {
                specs.push(DiskCreate { from: Some(image(value)?), ..DiskCreate::new(0) });
                continue;
            }
            let spec =
                specs.last_mut().ok_or_else(|| format!("{text:?}: no size before {key}=; {EXPECTED}"))?;
            set(spec, key, value)?;
        }
        Ok(Self(specs))
    }
}

fn image(value: &str) -> Result<DiskFrom, String> {
    let uri = match value {
        "" => return Err(format!("from=: {EXPECTED}")),
        uri if uri.contains("://") => uri.to_owned(),
        // The daemon's folder is not the user's.
        path => {
            let path = std::path::absolute(path).map_err(|e| format!("from={path}: {e}"))?;
            path.to_str().ok_or_else(|| format!("from={value}: expected a path in UTF-8"))?.to_owned()
        }
    };
    Ok(DiskFrom::image(uri))
}

fn set(disk: &mut DiskCreate, key: &str, value: &str) -> Result<(), String> {
    if let Some(from) = &mut disk.from {
        match key {
            "size" => disk.size_bytes = units::parse_disk_size(value)?,
            "copy" => from.copy = parse_yes_or_no(key, value)?,
            "verify" => from.verify = parse_yes_or_no(key, value)?,
            "backup" => {
                let number = value.parse();
                from.backup = Some(number.map_err(|_| format!("backup={value}: expected its number"))?);
            }
            "key-file" => from.key_file = Some(absolute(key, value)?),
            "passphrase-file" => from.passphrase_file = Some(absolute(key, value)?),
            "format" => from.format = Some(parse_format(value)?),
            "part" => {
                let part = value.parse();
                from.part = Some(part.map_err(|_| format!("part={value}: expected a number from 0"))?);
            }
            _ => {}
        }
        if matches!(
            key,
            "size" | "copy" | "verify" | "format" | "part" | "backup" | "key-file" | "passphrase-file"
        ) {
            return Ok(());
        }
    }
    match key {
        "mode" => disk.mode = parse_mode(value)?,
        "dir" if !value.is_empty() => disk.dir = Some(absolute(key, value)?),
        _ => return Err(format!("{key}={value}: {EXPECTED}")),
    }
    Ok(())
}

fn absolute(key: &str, value: &str) -> Result<PathBuf, String> {
    std::path::absolute(value).map_err(|e| format!("{key}={value}: {e}"))
}

fn parse_mode(text: &str) -> Result<DiskMode, String> {
    DiskMode::from_str(text, false).map_err(|_| {
        let words: Vec<_> = DiskMode::value_variants().iter().map(|mode| mode.word()).collect();
        format!("mode={text}: expected {}", words.join(", "))
    })
}

fn parse_yes_or_no(key: &str, text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{key}={text}: expected yes or no")),
    }
}

fn parse_format(text: &str) -> Result<ImageFormat, String> {
    ImageFormat::from_str(text, false).map_err(|_| {
        let words: Vec<_> = ImageFormat::value_variants().iter().map(|format| format.as_str()).collect();
        format!("format={text}: expected {}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
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
    fn an_image_starts_a_disk_too() {
        let parse = |text: &str| text.parse::<DiskSpecs>().unwrap().0;
        let uri = |spec: &DiskCreate| spec.from.as_ref().unwrap().uri.clone();
        let [image, empty] = &parse("from=/a.raw,size=2G,copy=no,mode=independent-persistent,1G")[..] else {
            panic!("two disks")
        };
        assert_eq!(
            (uri(image), image.size_bytes, image.mode),
            ("/a.raw".into(), 2 << 30, DiskMode::IndependentPersistent)
        );
        assert!(!image.from.as_ref().unwrap().copy && empty.from.is_none());
        let export = &parse("from=nbd+unix:///web/disk0@a?socket=/run/s")[0];
        assert_eq!((uri(export), export.size_bytes), ("nbd+unix:///web/disk0@a?socket=/run/s".into(), 0));
        assert!(uri(&parse("from=here.vmdk")[0]).starts_with('/'));
        assert_eq!(parse("from=/a,format=raw")[0].from.as_ref().unwrap().format, Some(ImageFormat::Raw));
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
            ("from=", "from=IMAGE"),
            ("1G,copy=no", "SIZE[,mode=MODE]"),
            ("from=/a.raw,copy=maybe", "yes or no"),
            ("from=/a.ova,verify=1", "verify=1: expected yes or no"),
            ("from=/a.raw,format=odd", "raw, vmdk, ova, nbd, qcow2"),
            ("from=/a.raw,size=1", "multiple of 512"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!("1G,2G".parse::<DiskSpec>().unwrap_err().contains("several"));
    }
}
