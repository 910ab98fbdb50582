//! Output of a command: JSON, or text laid out for people. Prompts, progress and errors go to standard error.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::error::{Error, ErrorBody, Result};

#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
}

/// Ends a command of `program`: reports its error, as JSON too where that was asked for, and returns its exit code.
pub fn exit(program: &str, output: Output, result: Result<u8>) -> ExitCode {
    exit_with(output, result, |error| note(&format!("{program}: {error}")))
}

/// As `exit`, with another report to people.
pub fn exit_with(output: Output, result: Result<u8>, report: impl FnOnce(&Error)) -> ExitCode {
    result.map_or_else(
        |error| {
            let code = error.exit_code();
            report(&error);
            if output.json {
                // Standard output may be what failed; the exit code still says so.
                let _ = output.json(&ErrorBody::from(error));
            }
            ExitCode::from(code)
        },
        ExitCode::from,
    )
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result of a command: `value` as JSON, or the text that `human` returns for it.
    pub fn result<T: Serialize>(self, value: &T, human: impl FnOnce(&T) -> String) -> Result<()> {
        if self.json { self.json(value) } else { self.text(&human(value)) }
    }

    pub fn json(self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(|e| Error::failed(format!("JSON: {e}")))?;
        self.raw(&escape_json(text)).map(|_| ())
    }

    /// Writes one value as one line of a stream. Returns false as `stream` does.
    pub fn json_line(self, value: &impl Serialize) -> Result<bool> {
        let text = serde_json::to_string(value).map_err(|e| Error::failed(format!("JSON: {e}")))?;
        self.raw(&escape_json(text))
    }

    /// Writes a result. If the reader closed the pipe (`| head`), that is no error, and the command's own exit code
    /// stands.
    pub fn text(self, text: &str) -> Result<()> {
        self.stream(text).map(|_| ())
    }

    /// Writes one piece of a stream. Returns false when the reader closed the pipe; the stream then ends. The text may
    /// contain names from untrusted files; see `escape_controls`.
    pub fn stream(self, text: &str) -> Result<bool> {
        self.raw(&escape_controls(text))
    }

    fn raw(self, text: &str) -> Result<bool> {
        let mut stdout = std::io::stdout().lock();
        match writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(Error::failed(format!("standard output: {e}"))),
        }
    }

    /// Writes a line for people to standard error, so that the JSON on standard output stays clean.
    pub fn note(self, text: &str) {
        note(text);
    }
}

/// Writes a line for people to standard error. A closed standard error is ignored and does not end the command.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escape_controls(text));
}

/// Returns whether a terminal interprets the character instead of showing it: control characters, and those that change
/// the direction of text.
fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control()
}

/// Returns the text with the characters that a terminal would interpret as escapes, because names can come from
/// untrusted files. Tabs and ends of lines stay.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_obeyed(c) && !matches!(c, '\n' | '\t'), |c| c.escape_unicode().to_string())
}

/// Returns the text as one line, with the characters that a terminal would interpret as escapes.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape(text, is_obeyed, |c| c.escape_default().to_string())
}

/// Returns equivalent JSON. The escaped characters occur only inside its strings.
fn escape_json(text: String) -> String {
    let in_string = |c| is_obeyed(c) && !matches!(c, '\n' | '\t');
    escape(&text, in_string, |c| format!("\\u{:04x}", u32::from(c))).into_owned()
}

fn escape(text: &str, escaped: fn(char) -> bool, written: fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if escaped(c) { written(c) } else { c.to_string() }).collect())
}

pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns whether a user can see a question and answer it.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks a question; any answer but `y` or `yes` means no.
pub fn ask(question: &str) -> Result<bool> {
    let _ = write!(std::io::stderr(), "{} [y/N] ", escape_controls(question));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|e| Error::failed(format!("standard input: {e}")))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Returns a table: boxed on a terminal, with aligned columns and no lines elsewhere.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(if stdout_is_terminal() { UTF8_FULL_CONDENSED } else { NOTHING });
    table.set_header(header.to_vec());
    table
}

/// Aligns columns of figures to the right.
pub fn align_right(table: &mut Table, columns: &[usize]) {
    for &index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Returns `key  value` lines with the values in one column.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    fields.iter().map(|(key, value)| format!("{key:width$}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_in_a_name() {
        let hostile = "web\u{1b}]0;owned\u{7}\r\u{9b}2J\u{202e}\n";
        assert_eq!(escape_controls(hostile), "web\\u{1b}]0;owned\\u{7}\\u{d}\\u{9b}2J\\u{202e}\n");
        assert_eq!(escape_line("a\nunstun: b\u{1b}"), "a\\nunstun: b\\u{1b}");
        let json = escape_json(serde_json::to_string_pretty(&[hostile]).unwrap());
        assert!(!json.contains(|c| is_obeyed(c) && c != '\n'), "{json:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [hostile]);
        assert!(matches!(escape_controls("plain, \u{e4} and \u{2192}\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn fields_line_up() {
        assert_eq!(fields(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2\n");
    }

    #[test]
    fn a_table_elsewhere_than_on_a_terminal_is_plain() {
        let mut table = table(&["name", "size"]);
        table.add_row(["web", "20 GiB"]);
        align_right(&mut table, &[1]);
        assert!(table.to_string().is_ascii());
    }
}
