//! Runs programs of other projects.

use std::process::{Command, Output, Stdio};

/// Folders of programs that make and check file systems; a user's PATH may lack them.
const SYSTEM_PROGRAMS: &str = "/usr/sbin:/sbin";

pub(crate) fn try_tool(program: &str, arguments: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", format!("{path}:{SYSTEM_PROGRAMS}"))
        .stdin(Stdio::null())
        .output();
    output.unwrap_or_else(|e| panic!("{program}: {e}; `make setup` installs it"))
}

/// Returns standard output; fails with the program's whole output.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> String {
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
