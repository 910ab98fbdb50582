//! Parses TOML into an experiment; errors name the line and the key.

use blk::{Error, Result};
use toml::de::DeTable;

use super::{Experiment, check};
use crate::storage::line_of;

/// Parses an experiment. `place` is the file's name as the user gave it.
///
/// Errors: `Invalid`, with `place:line` and the key, what was found and what is possible.
pub fn parse(name: &str, place: &str, text: &str) -> Result<Experiment> {
    let invalid = |line: usize, cause: String| Error::invalid(format!("{place}:{line}"), cause);
    let mut experiment: Experiment = toml::from_str(text).map_err(|e| {
        let begin = e.span().map_or(0, |span| span.start);
        invalid(line_of(text, blamed(text, begin, e.message())), e.message().replace('\n', " "))
    })?;
    experiment.name = name.to_string();
    check::check(&experiment)
        .map_err(|found| invalid(line_of_table(text, found.table, found.index), found.to_string()))?;
    Ok(experiment)
}

/// Returns the position that a message is about. The TOML reader reports tables, and for some only where they begin.
/// From there this searches for the word that the message puts in backquotes first.
fn blamed(text: &str, begin: usize, message: &str) -> usize {
    let begin = if text.is_char_boundary(begin) { begin } else { 0 };
    let word = match message.starts_with("unknown") {
        true => message.split('`').nth(1).unwrap_or(""),
        false => "",
    };
    if word.is_empty() {
        return begin;
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let alone = |at: &usize| {
        let (before, after) = (text[..*at].chars().next_back(), text[at + word.len()..].chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    };
    text[begin..].match_indices(word).map(|(n, _)| begin + n).find(alone).unwrap_or(begin)
}

/// Returns the line of a table; 1 where it is not found, and for keys outside of tables.
fn line_of_table(text: &str, table: &str, index: usize) -> usize {
    let find = || {
        let root = DeTable::parse(text).ok()?;
        Some(root.get_ref().get(table)?.get_ref().as_array()?.get(index)?.span().start)
    };
    find().map_or(1, |at| line_of(text, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../../../../experiments/zandboer-saturated.toml");

    fn error(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from} is in the file");
        let text = GOOD.replacen(from, to, 1);
        let line = text[..text.find(to).unwrap()].lines().count().max(1);
        let error = parse("x", "x.toml", &text).unwrap_err();
        assert_eq!(error.kind, blk::ErrorKind::Invalid);
        let shown = error.to_string();
        let told: usize = shown.split(':').nth(1).unwrap().parse().unwrap();
        assert!(told.abs_diff(line) <= 1, "{shown}: expected line {line}");
        shown
    }

    #[test]
    fn what_nobody_knows_is_told_with_its_line_and_what_is_possible() {
        for (from, to, word, possible) in [
            ("storage = ", "storrage = ", "storrage", "storage"),
            ("size_bytes", "size_gb", "size_gb", "size_bytes"),
            ("outstanding = 4", "queue = 4", "queue", "outstanding"),
            ("phase = \"drain\"", "phase = \"drian\"", "drian", "drain"),
            ("do = \"commit\"", "do = \"comit\"", "comit", "commit"),
            ("seconds = 200", "minutes = 3", "minutes", "seconds"),
            ("quantity = \"writes_per_s\"", "quantity = \"kb_per_s\"", "kb_per_s", "mb_per_s"),
            ("use = \"baseline\"", "use = \"fit\"", "fit", "baseline"),
            ("release = \"3.5\"", "release = \"2.0\"", "2.0", "5.5"),
            ("input = \"outstanding\"", "input = \"depth\"", "depth", "outstanding"),
        ] {
            let shown = error(from, to);
            assert!(shown.contains(word) && shown.contains(possible), "{shown}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_told_with_the_line_of_its_table() {
        for (from, to, word) in [
            ("size_bytes = 4_294_967_296", "size_bytes = 1000", "512"),
            ("working_set_bytes = 1_024_000_000", "working_set_bytes = 9_000_000_000_000", "until byte"),
            ("quantity = \"seconds\"\nspan", "quantity = \"seconds\"\nstun = 1\nspan", "stun"),
            ("span = \"create file, with snapshot\"", "span = \"creation\"", "creation"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let shown = parse("x", "x.toml", &text).unwrap_err().to_string();
            let told: usize = shown.split(':').nth(1).unwrap().parse().unwrap();
            assert!(told > 1 && shown.contains(word), "{shown}");
        }
    }

    #[test]
    fn constants_of_another_stack_have_bounds() {
        let good = include_str!("../../../../experiments/garcia-qcow2.toml");
        let with = |bytes: u64| {
            let given = format!("l2_cache_bytes = {bytes}");
            parse("x", "x.toml", &good.replacen("l2_cache_bytes = 67_108_864", &given, 1))
        };
        with(8 << 20).unwrap();
        for bytes in [0, (8 << 20) - 1, (1 << 30) + 1] {
            let shown = with(bytes).unwrap_err().to_string();
            assert!(shown.contains("l2_cache_bytes: 8388608 to 1073741824"), "{shown}");
        }
        let shown = parse("x", "x.toml", &good.replacen("unit_bytes = 16_384", "unit_bytes = 16_385", 1));
        assert!(shown.unwrap_err().to_string().contains("unit_bytes = 16385: powers of two"));
    }

    #[test]
    fn text_that_is_no_toml_is_an_error() {
        for text in ["", "[[[", "\u{0}", "title = \"x\"\ntitle = \"y\"", "title = 1e999999"] {
            assert!(parse("x", "x.toml", text).is_err());
        }
    }
}
