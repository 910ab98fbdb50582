//! Parses TOML into a storage model; errors name the line and the key.

use std::ops::Range;

use blk::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::StorageModel;
use super::kinds::{CALLS, KINDS, Kind, Part, kind};
use super::unit::{factor, possible};
use crate::run::{Constant, ConstantSource};

/// Deepest nesting of parts; no real storage is deeper.
const DEPTH_MAX: usize = 16;

type Table<'a> = DeTable<'a>;

struct Parser<'a> {
    place: &'a str,
    text: &'a str,
    constants: Vec<Constant>,
    /// Position of each constant in the text.
    spans: Vec<Range<usize>>,
}

/// A constant as the file contains it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    value: f64,
    #[serde(default)]
    unit: String,
    source: ConstantSource,
    note: String,
}

pub(super) fn parse(name: &str, place: &str, text: &str) -> Result<StorageModel> {
    let mut parser = Parser { place, text, constants: Vec::new(), spans: Vec::new() };
    let root = DeTable::parse(text)
        .map_err(|e| parser.error(&e.span().unwrap_or(0..0), e.message().replace('\n', " ")))?;
    let (span, root) = (root.span(), root.get_ref());
    parser.known(root, "the file", &["title", "left_out", "model", CALLS])?;
    let title = parser.read(root, &span, "title")?;
    let left_out = match root.contains_key("left_out") {
        true => parser.read(root, &span, "left_out")?,
        false => Vec::new(),
    };
    let (model, at) = parser.table(root, &span, "model")?;
    let part = parser.part(model, &at, "", 0)?;
    let (calls, at) = parser.table(root, &span, CALLS)?;
    let calls_kind = kind(CALLS).expect("listed");
    parser.known(calls, CALLS, &keys_of(calls_kind, None))?;
    parser.constants_of(calls_kind, calls, &at, "calls.")?;
    let Parser { constants, spans, .. } = parser;
    let model = StorageModel { name: name.to_string(), title, left_out, part, constants };
    let wrong = |(name, cause): (String, String)| {
        let at = model.constants.iter().position(|c| c.name == name).map_or(0, |n| spans[n].start);
        Error::invalid(format!("{place}:{}", line_of(text, at)), cause)
    };
    model.check().map_err(wrong)?;
    Ok(model)
}

/// Returns the number, from 1, of the line that has the byte `at`.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn keys_of<'k>(kind: &'k Kind, own: Option<&'k str>) -> Vec<&'k str> {
    own.into_iter().chain(kind.keys.iter().map(|key| key.name)).chain(kind.parts.iter().copied()).collect()
}

impl<'a> Parser<'a> {
    fn error(&self, span: &Range<usize>, cause: String) -> Error {
        Error::invalid(format!("{}:{}", self.place, line_of(self.text, span.start)), cause)
    }

    /// Checks that every key of the table is one of `keys`.
    fn known(&self, table: &Table<'_>, what: &str, keys: &[&str]) -> Result<()> {
        for (key, _) in table {
            let name: &str = key.get_ref();
            if !keys.contains(&name) {
                let cause = format!("unknown key {name} in {what}; possible are {}", keys.join(", "));
                return Err(self.error(&key.span(), cause));
            }
        }
        Ok(())
    }

    fn get<'t>(
        &self,
        table: &'t Table<'a>,
        span: &Range<usize>,
        key: &str,
    ) -> Result<&'t Spanned<DeValue<'a>>> {
        table.get(key).ok_or_else(|| self.error(span, format!("the key {key} is missing")))
    }

    fn table<'t>(
        &self,
        table: &'t Table<'a>,
        span: &Range<usize>,
        key: &str,
    ) -> Result<(&'t Table<'a>, Range<usize>)> {
        let found = self.get(table, span, key)?;
        match found.get_ref() {
            DeValue::Table(inner) => Ok((inner, found.span())),
            other => {
                Err(self.error(&found.span(), format!("{key} is a {}, expected a table", other.type_str())))
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, table: &Table<'a>, span: &Range<usize>, key: &str) -> Result<T> {
        let found = self.get(table, span, key)?;
        T::deserialize(ValueDeserializer::from(found.clone())).map_err(|e| {
            let span = e.span().unwrap_or(found.span());
            self.error(&span, format!("{key}: {}", e.message().replace('\n', " ")))
        })
    }

    fn part(&mut self, table: &Table<'a>, span: &Range<usize>, prefix: &str, depth: usize) -> Result<Part> {
        let name: String = self.read(table, span, "kind")?;
        let found = kind(&name).filter(|kind| kind.name != CALLS);
        let found = found.ok_or_else(|| {
            let kinds: Vec<_> = KINDS.iter().map(|kind| kind.name).filter(|name| *name != CALLS).collect();
            let cause = format!("kind = {name:?}; possible are {}", kinds.join(", "));
            self.error(&table.get("kind").map_or(span.clone(), Spanned::span), cause)
        })?;
        if depth >= DEPTH_MAX {
            return Err(self.error(span, format!("more than {DEPTH_MAX} parts within one another")));
        }
        self.known(table, found.name, &keys_of(found, Some("kind")))?;
        self.constants_of(found, table, span, prefix)?;
        let mut parts = Vec::new();
        for key in found.parts {
            let (inner, at) = self.table(table, span, key)?;
            parts.push(self.part(inner, &at, &format!("{prefix}{key}."), depth + 1)?);
        }
        Ok(Part { kind: found.name, prefix: prefix.to_string(), parts })
    }

    fn constants_of(
        &mut self,
        kind: &'static Kind,
        table: &Table<'a>,
        span: &Range<usize>,
        prefix: &str,
    ) -> Result<()> {
        for key in kind.keys {
            if key.absent.is_some() && table.get(key.name).is_none() {
                continue;
            }
            let at = self.get(table, span, key.name)?.span();
            let Written { value, unit, source, note } = self.read(table, span, key.name)?;
            if factor(&unit, key.quantity).is_none() {
                let cause = format!("{}: unit {unit:?}; possible are {}", key.name, possible(key.quantity));
                return Err(self.error(&at, cause));
            }
            let name = format!("{prefix}{}", key.name);
            self.constants.push(Constant { name, value, unit, source, note });
            self.spans.push(at);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{StorageModel, names, presets};

    fn pair() -> String {
        presets::text("sas-10k-pair").expect("ships").0.to_string()
    }

    #[test]
    fn every_model_that_ships_is_read_and_works() {
        assert!(names().count() >= 11);
        for name in names() {
            let model = StorageModel::named(name).unwrap_or_else(|e| panic!("{e}"));
            assert!(!model.title.is_empty() && !model.left_out.is_empty(), "{name}");
            assert!(model.constants().iter().all(|c| c.note.len() > 3), "{name}: a note says nothing");
            let options = sim::Options {
                storage: Some(model.storage()),
                content: sim::ContentMode::Applied,
                ..sim::Options::default()
            };
            let world = sim::SimWorld::new(1, options);
            world.run(|env| async move {
                let file = env.open_root("/").unwrap().create_new("disk").await.unwrap();
                file.write(1 << 20, blk::Buf::zeroed(65_536)).await.unwrap();
                file.flush().await.unwrap();
                let (buf, read) = file.read(1 << 20, blk::Buf::alloc(4096)).await;
                assert!(read.is_ok() && buf[..] == [0; 4096]);
            });
            assert!(world.now_ns() > 10_000, "{name}: {} ns", world.now_ns());
        }
    }

    #[test]
    fn a_wrong_file_is_refused_with_line_and_key() {
        // Text to replace, its replacement, the start of the line that the message names, and part of the cause.
        let cases = [
            ("revolution = {", "revolutions = {", "revolutions", "unknown key revolutions in disk"),
            (
                "value = 6.0, unit = \"ms\"",
                "value = 6.0, unit = \"MB\"",
                "revolution",
                "revolution: unit \"MB\"",
            ),
            ("value = 6.0, unit", "valve = 6.0, unit", "revolution", "valve"),
            ("value = 6.0", "value = 0.0", "revolution", "member.revolution is 0 ns, expected"),
            ("value = 4, source", "value = 4.5, source", "heads", "whole"),
            ("kind = \"disk\"", "kind = \"drum\"", "kind = \"drum\"", "kind = \"drum\"; possible are disk"),
            ("source = \"data-sheet\"", "source = \"hearsay\"", "revolution", "hearsay"),
            ("[model]", "[modell]", "[modell]", "unknown key modell in the file"),
            ("title = ", "title : ", "title", ""),
            ("[calls]", "[calls]\nsing = 1", "sing", "unknown key sing in calls"),
            ("write_settle = {", "# write_settle = {", "[model.member]", "the key write_settle is missing"),
        ];
        for (good, bad, begin, cause) in cases {
            let text = pair().replacen(good, bad, 1);
            assert_ne!(text, pair(), "{good} is not in the file");
            let line = text.lines().position(|line| line.starts_with(begin)).expect("a line of the file") + 1;
            let error = StorageModel::parse("mine", "mine.toml", &text).unwrap_err();
            let place = format!("mine.toml:{line}");
            let told = format!("{bad}: {} {}, expected {place} {cause}", error.place, error.cause);
            assert!(error.place == place && error.cause.contains(cause), "{told}");
        }
    }

    #[test]
    fn parts_without_end_are_refused() {
        let deep = (1..20)
            .map(|n| format!("[model{}]\nkind = \"mirror\"\n", ".member".repeat(n)))
            .collect::<String>();
        let members = "members = { value = 1, source = \"declared\", note = \"n\" }\n";
        let text = format!("title = \"t\"\n[model]\nkind = \"mirror\"\n{deep}[calls]\n");
        let text = text.replace("kind = \"mirror\"\n", &format!("kind = \"mirror\"\n{members}"));
        let error = StorageModel::parse("deep", "deep.toml", &text).unwrap_err();
        assert!(error.cause.contains("within one another"), "{}", error.cause);
    }
}
