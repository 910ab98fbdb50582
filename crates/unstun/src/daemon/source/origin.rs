//! What a store records of a source's image: where it is, and how it is recognised. `docs/formats/source.md` describes the
//! text.

use std::path::{Path, PathBuf};

use api::error::{Error, ErrorKind, Result};
use api::{DiskFrom, ImageFormat};
use serde::{Deserialize, Serialize};

/// Begin of the URI of an NBD export.
const NBD_SCHEME: &str = "nbd";

/// Image of a source. Its text is the name of the source in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Origin {
    /// Absolute path without links, or the URI of an NBD export.
    pub uri: String,
    pub format: ImageFormat,
    /// Number of the disk in an OVA, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Number of a backup, of whose repository `uri` is the place or the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<u32>,
    /// Files that open the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passphrase_file: Option<PathBuf>,
    /// Whether the image is copied into the store.
    pub copy: bool,
    /// Whether the hash that the OVA's manifest has for the disk is compared before the image is copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify: bool,
    /// Identity of the files of the image; None where nothing would show a change.
    pub fingerprint: Option<String>,
}

impl Origin {
    /// Returns the image that a request names, before it was opened.
    pub(super) fn asked(from: &DiskFrom) -> Result<Origin> {
        let format = match from.format {
            Some(format) => format,
            None => format_of(&from.uri)?,
        };
        let is_nbd = is_nbd(&from.uri);
        if is_nbd != (format == ImageFormat::Nbd) {
            let expected = match is_nbd {
                true => "format nbd for the URI of an NBD export",
                false => "a URI such as nbd+unix:///EXPORT?socket=PATH for format nbd",
            };
            return Err(Error::invalid(format!(
                "{}: format {}: expected {expected}",
                from.uri,
                format.as_str()
            )));
        }
        let is_backup = format == ImageFormat::Backup;
        let has_parts = is_backup || format == ImageFormat::Ova;
        let invalid =
            |cause: &str| Err(Error::invalid(format!("{}: format {}: {cause}", from.uri, format.as_str())));
        if from.part.is_some() && !has_parts {
            return invalid("only an OVA has parts, and a backup");
        }
        if is_backup != from.backup.is_some() {
            return invalid("expected the number of a backup with the format backup, and with no other");
        }
        if !is_backup && (from.key_file.is_some() || from.passphrase_file.is_some()) {
            return invalid("only a repository of backups has a key");
        }
        Ok(Origin {
            uri: from.uri.clone(),
            format,
            part: has_parts.then(|| from.part.unwrap_or(0)),
            backup: from.backup,
            key_file: from.key_file.clone(),
            passphrase_file: from.passphrase_file.clone(),
            copy: from.copy,
            verify: from.verify && format == ImageFormat::Ova,
            fingerprint: None,
        })
    }

    pub(super) fn parse(text: &str) -> Result<Origin> {
        serde_json::from_str(text).map_err(|e| {
            let cause = format!("a source is recorded as {text:?}: {e}");
            Error::new(ErrorKind::Damaged, format!("{cause}; a later version of unstun may have made it"))
        })
    }

    pub(super) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::failed(format!("JSON: {e}")))
    }
}

pub(super) fn is_nbd(uri: &str) -> bool {
    uri.split_once("://").is_some_and(|(scheme, _)| scheme.starts_with(NBD_SCHEME))
}

/// Returns the format that a name says. The content never decides: a guest writes the first bytes of its disk.
fn format_of(uri: &str) -> Result<ImageFormat> {
    if is_nbd(uri) {
        return Ok(ImageFormat::Nbd);
    }
    let suffix = Path::new(uri).extension().and_then(|suffix| suffix.to_str()).map(str::to_ascii_lowercase);
    match suffix.as_deref() {
        Some("vmdk") => Ok(ImageFormat::Vmdk),
        Some("ova") => Ok(ImageFormat::Ova),
        Some("raw" | "img") => Ok(ImageFormat::Raw),
        Some("qcow2") => Ok(ImageFormat::Qcow2),
        Some("vhdx") => Ok(ImageFormat::Vhdx),
        Some("vdi") => Ok(ImageFormat::Vdi),
        Some("vhd" | "vpc") => Ok(ImageFormat::Vpc),
        _ => {
            let expected = "expected a name that ends in .vmdk, .ova, .raw, .img, .qcow2, .vhdx, .vdi or .vhd, or the format beside \
                            it, as in `--disk from=PATH,format=raw`; `qemu-nbd` serves others as NBD exports";
            Err(Error::invalid(format!("{uri}: the name does not say the image's format; {expected}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uri: &str, format: Option<ImageFormat>) -> Result<Origin> {
        Origin::asked(&DiskFrom { format, ..DiskFrom::image(uri) })
    }

    #[test]
    fn a_name_says_the_format_unless_the_request_does() {
        for (uri, format) in [
            ("/a/b.vmdk", ImageFormat::Vmdk),
            ("/a/B.VMDK", ImageFormat::Vmdk),
            ("/a/b.raw", ImageFormat::Raw),
            ("/a/b.img", ImageFormat::Raw),
            ("nbd://host/x", ImageFormat::Nbd),
            ("nbd+unix:///x?socket=/s", ImageFormat::Nbd),
        ] {
            assert_eq!(asked(uri, None).unwrap().format, format, "{uri}");
        }
        assert!(asked("/a/b", None).unwrap_err().message.contains("format=raw"));
        assert_eq!(asked("/a/b", Some(ImageFormat::Raw)).unwrap().format, ImageFormat::Raw);
        assert!(asked("/a/b.raw", Some(ImageFormat::Nbd)).unwrap_err().message.contains("nbd+unix"));
        assert!(asked("nbd://host/x", Some(ImageFormat::Raw)).unwrap_err().message.contains("format nbd"));
    }

    #[test]
    fn the_recorded_text_is_read_again_and_other_texts_are_refused() {
        let origin = Origin { fingerprint: Some("ab".into()), ..asked("/a/b.vmdk", None).unwrap() };
        let text = origin.text().unwrap();
        assert_eq!(text, r#"{"uri":"/a/b.vmdk","format":"vmdk","copy":true,"fingerprint":"ab"}"#);
        assert_eq!(Origin::parse(&text).unwrap(), origin);
        for wrong in [
            "",
            "/a/b.vmdk",
            r#"{"uri":"/a"}"#,
            r#"{"uri":"/a","format":"x","copy":true,"fingerprint":null}"#,
        ] {
            assert!(Origin::parse(wrong).unwrap_err().message.contains("a source is recorded as"), "{wrong}");
        }
    }
}
