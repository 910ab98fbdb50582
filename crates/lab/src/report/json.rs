//! Records as JSON; `docs/lab-json.md` describes every field.

use blk::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::run::{Record, SCHEMA};

/// Several runs in one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    pub schema: u32,
    pub records: Vec<Record>,
}

/// Writes one run as its record, and several as a `Document`.
pub fn write(records: &[Record]) -> Result<String> {
    let text = match records {
        [one] => serde_json::to_string_pretty(one),
        many => serde_json::to_string_pretty(&Document { schema: SCHEMA, records: many.to_vec() }),
    };
    text.map_err(|e| Error::new(ErrorKind::Io, "JSON", e.to_string()))
}

/// Reads the output of `write`, or an array of records. Fields that are unknown to this version are ignored.
pub fn read(name: &str, bytes: &[u8]) -> Result<Vec<Record>> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Any {
        Document(Document),
        Records(Vec<Record>),
        One(Box<Record>),
    }
    check_schema(name, bytes)?;
    let any: Any = serde_json::from_slice(bytes).map_err(|_| why_not(name, bytes))?;
    Ok(match any {
        Any::Document(document) => document.records,
        Any::Records(records) => records,
        Any::One(record) => vec![*record],
    })
}

fn check_schema(name: &str, bytes: &[u8]) -> Result<()> {
    #[derive(Deserialize)]
    struct Schema {
        schema: u32,
    }
    match serde_json::from_slice::<Schema>(bytes) {
        Ok(Schema { schema }) if schema > SCHEMA => {
            let cause = format!("schema {schema}, written by a newer version; this one reads up to {SCHEMA}");
            Err(Error::unsupported(name, cause))
        }
        _ => Ok(()),
    }
}

/// Returns the cause of a failure. The untagged enum loses it, so this parses again, in the shape that the first bytes
/// indicate.
fn why_not(name: &str, bytes: &[u8]) -> Error {
    let is_array = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
    let cause = if is_array {
        serde_json::from_slice::<Vec<Record>>(bytes).err()
    } else {
        serde_json::from_slice::<Record>(bytes).err()
    };
    let cause = cause.map_or_else(|| "no record".into(), |e| e.to_string());
    Error::damaged(name, format!("{cause}; expected the JSON of lab run, see docs/lab-json.md"))
}
