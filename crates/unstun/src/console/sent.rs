//! The fields of a form that a browser has sent.

use std::fmt::Display;
use std::str::FromStr;

use api::Quiesce;
use api::error::{Error, Result};
use clap::ValueEnum;
use serde::Deserialize;

/// Names and values of all fields, in the order of the form. A field without a value is as one that is missing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Sent(Vec<(String, String)>);

impl Sent {
    /// Returns the value of a field; empty if there is none.
    pub(super) fn text(&self, field: &str) -> &str {
        self.all(field).next().unwrap_or_default()
    }

    /// Returns the values of a field that the form has several times.
    pub(super) fn all<'a>(&'a self, field: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == field).map(|(_, value)| value.as_str())
    }

    /// Returns whether the form has a field, which may be empty.
    pub(super) fn has(&self, field: &str) -> bool {
        self.all(field).next().is_some()
    }

    /// Returns whether a box is ticked.
    pub(super) fn is_ticked(&self, field: &str) -> bool {
        self.text(field) == "yes"
    }

    pub(super) fn parsed<T: FromStr<Err: Display>>(&self, field: &str) -> Result<T> {
        self.text(field).parse().map_err(invalid)
    }

    /// Returns the value of a field that may be empty.
    pub(super) fn optional<T: FromStr<Err: Display>>(&self, field: &str) -> Result<Option<T>> {
        match self.text(field) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(invalid),
        }
    }

    /// Returns the parts of a field that has several, which spaces or commas separate.
    pub(super) fn list<T: FromStr<Err: Display>>(&self, field: &str) -> Result<Vec<T>> {
        self.split(field, &[',', ' '])
    }

    /// Returns the parts of a field that has several, which characters separate.
    pub(super) fn split<T: FromStr<Err: Display>>(&self, field: &str, between: &[char]) -> Result<Vec<T>> {
        let parts = self.text(field).split(between).map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().map_err(invalid)).collect()
    }

    pub(super) fn number<T: FromStr>(&self, field: &str) -> Result<T> {
        let text = self.text(field);
        text.parse().map_err(|_| Error::invalid(format!("{field}: found {text:?}, expected a number")))
    }

    /// Returns the value of a field whose values the command line has too.
    pub(super) fn word<T: ValueEnum>(&self, field: &str) -> Result<T> {
        let text = self.text(field);
        T::from_str(text, false).map_err(|_| {
            let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let words: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
            Error::invalid(format!("{field}: found {text:?}, expected {}", words.join(", ")))
        })
    }

    /// Returns whether guests are to be frozen. A form without the field does not ask for it.
    pub(super) fn quiesce(&self) -> Result<Quiesce> {
        if self.text("quiesce").is_empty() { Ok(Quiesce::No) } else { self.word("quiesce") }
    }

    /// Returns a form with these fields.
    pub(super) fn of<T: AsRef<str>>(fields: &[(&str, T)]) -> Sent {
        Sent(fields.iter().map(|(name, value)| ((*name).to_owned(), value.as_ref().to_owned())).collect())
    }
}

pub(super) fn invalid(cause: impl Display) -> Error {
    Error::invalid(cause.to_string())
}

#[cfg(test)]
mod tests {
    use api::name::Tag;
    use api::{DiskMode, Store};

    use super::*;

    #[test]
    fn fields_are_read_and_a_fault_says_what_was_expected() {
        let sent = Sent::of(&[
            ("vm", "a"),
            ("vm", "b"),
            ("tags", "prod, web  db"),
            ("size", ""),
            ("store", "raw"),
            ("disconnect", "yes"),
        ]);
        assert_eq!(sent.all("vm").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(sent.list::<Tag>("tags").unwrap().len(), 3);
        assert_eq!(sent.optional::<u64>("size").unwrap(), None);
        assert!(sent.is_ticked("disconnect") && !sent.is_ticked("keep"));
        assert_eq!(sent.text("none"), "");
        let error = sent.word::<Store>("store").unwrap_err().message;
        assert_eq!(error, "store: found \"raw\", expected native, redo");
        let error = sent.number::<u64>("vm").unwrap_err().message;
        assert_eq!(error, "vm: found \"a\", expected a number");
        let mode = Sent::of(&[("mode", "independent-persistent")]).word::<DiskMode>("mode").unwrap();
        assert_eq!(mode, DiskMode::IndependentPersistent);
    }
}
