//! Programs of other people.

use std::process::{Command, Output, Stdio};

/// Those that make and check file systems may be out of a user's path.
const SYSTEM_PROGRAMS: &str = "/usr/sbin:/sbin";

pub fn try_tool(program: &str, arguments: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", format!("{path}:{SYSTEM_PROGRAMS}"))
        .stdin(Stdio::null())
        .output();
    output.unwrap_or_else(|e| panic!("{program}: {e}; `make setup` installs it"))
}

/// Standard output; fails with everything the program said.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = try_tool(program, arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {}: {}\n{said}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
