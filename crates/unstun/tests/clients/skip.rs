//! Tests that cannot run here.

use std::io::Write;

/// Reports that the running test cannot run here. `scripts/test.sh` counts it as skipped, and not as passed.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    // Unlike `println!`, this is not captured. With one test at a time the line has the test's name before it.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {reason}");
}
