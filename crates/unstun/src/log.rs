//! Lines of the daemon's log, on standard error. A line that cannot be written is lost: a closed pipe or a full disk
//! under the log must not end the daemon, as a panic of `eprintln!` would.

use std::cell::Cell;
use std::fmt::Display;
use std::io::Write;

use api::output::escape_line;
use jiff::Timestamp;

/// Writes one line. Control characters and ends of lines are escaped, because names in it can come from untrusted
/// files.
pub fn log(message: impl Display) {
    let line = format!("unstun: {}\n", escape_line(&message.to_string()));
    // The line is one write, so that lines of several threads do not mix.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Limiter of the log lines that untrusted clients cause: at most `max` in a second; the lines left out are counted.
pub struct Spaced {
    max: u32,
    second: Cell<i64>,
    said: Cell<u32>,
    unsaid: Cell<u64>,
}

impl Spaced {
    pub fn new(max: u32) -> Spaced {
        Spaced { max, second: Cell::new(0), said: Cell::new(0), unsaid: Cell::new(0) }
    }

    pub fn log(&self, message: impl FnOnce() -> String) {
        match self.admit(Timestamp::now().as_second()) {
            None => {}
            Some(0) => log(message()),
            Some(unsaid) => log(format_args!("{} ({unsaid} more before it)", message())),
        }
    }

    /// Returns `None` if the line is left out, else the number of lines left out before it.
    fn admit(&self, second: i64) -> Option<u64> {
        if self.second.replace(second) != second {
            self.said.set(0);
        }
        if self.said.get() == self.max {
            self.unsaid.update(|unsaid| unsaid + 1);
            return None;
        }
        self.said.update(|said| said + 1);
        Some(self.unsaid.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_second_are_counted_beyond_their_number() {
        let lines = Spaced::new(2);
        let admitted: Vec<_> = [7, 7, 7, 7, 8, 9].map(|second| lines.admit(second)).into();
        assert_eq!(admitted, [Some(0), Some(0), None, None, Some(2), Some(0)]);
    }
}
