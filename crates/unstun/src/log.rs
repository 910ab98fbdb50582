//! Lines of the daemon's log, on standard error. A line that cannot be written is lost: a closed pipe or a full disk
//! under the log must not end what serves disks, which is what `eprintln!` would do there.

use std::fmt::Display;
use std::io::Write;

use crate::output::escape_line;

/// Writes one line. Control characters are escaped, ends of lines too, because names in it can come from strangers' files.
pub fn log(message: impl Display) {
    let line = format!("unstun: {}\n", escape_line(&message.to_string()));
    // One write, so that lines of several threads do not mix.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
