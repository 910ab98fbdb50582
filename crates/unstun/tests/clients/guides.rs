//! Runs every command in `docs/guides`, and checks that it prints what the page shows.
//!
//! A block fenced as `console` holds commands, each after `$ ` and continued after `> `. Under each command are the
//! lines of its output that matter, in their order; `...` stands for any text. A block after `<!-- run -->` is run as
//! it is; other blocks are not. Preparations that a reader has already done, and the test has not, are in a hidden
//! comment: `<!-- run`, commands, `-->`.
//! Each guide is one shell in a folder of its own, where a daemon serves `./unstun-data`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::Datastore;

/// Folder for standard output and errors of each step, by the step's number.
const OUTPUTS: &str = "outputs";
/// Time limit of a guide: several times what the longest one takes. A program that waits for its reader ends with the
/// test.
const GUIDE_SECONDS_MAX: &str = "240";

/// A command, or a hidden block of commands, as one or more lines of a shell's script.
#[derive(Debug, Default, PartialEq)]
struct Step {
    /// Line number, from 1.
    line: usize,
    command: String,
    expected: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Prose,
    /// After `<!-- run -->`.
    BeforeScript,
    /// Text that is run as it is: a block, or a hidden comment.
    Script,
    Console,
    /// A block that is not run.
    Other,
}

fn next_place(place: Place, line: &str) -> Place {
    match (place, line) {
        (Place::Prose, "<!-- run") => Place::Script,
        (Place::Prose, "<!-- run -->") => Place::BeforeScript,
        (Place::Prose, "```console") => Place::Console,
        (Place::BeforeScript, _) if line.starts_with("```") => Place::Script,
        (Place::Prose, _) if line.starts_with("```") => Place::Other,
        (Place::Script | Place::Console | Place::Other, "```") | (Place::Script, "-->") => Place::Prose,
        _ => place,
    }
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut place = Place::Prose;
    for (line, text) in (1..).zip(text.lines()) {
        let before = place;
        place = next_place(before, text);
        match place {
            Place::Script if before != place => steps.push(Step { line, ..Step::default() }),
            Place::Script => steps.last_mut().expect("it began").command += &format!("{text}\n"),
            Place::Console if before == place => shown(line, text, &mut steps),
            _ => {}
        }
    }
    steps
}

/// Parses a line of a `console` block.
fn shown(line: usize, text: &str, steps: &mut Vec<Step>) {
    if let Some(command) = text.strip_prefix("$ ") {
        steps.push(Step { line, command: format!("{command}\n"), expected: Vec::new() });
        return;
    }
    let step = steps.last_mut().unwrap_or_else(|| panic!("line {line}: output of no command"));
    match text.strip_prefix("> ") {
        Some(more) => step.command += &format!("{more}\n"),
        None => step.expected.push(text.to_owned()),
    }
}

/// Returns the first line of `expected` that `output` does not contain after the previous ones.
fn missing<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    expected.iter().find(|line| !lines.any(|said| matches(line, said))).map(String::as_str)
}

/// Returns whether a line is the one shown; spaces at its end are ignored.
fn matches(shown: &str, said: &str) -> bool {
    let mut pieces = shown.trim_end().split("...");
    let Some(mut rest) = said.trim_end().strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// Returns one script for all steps, so that variables and functions persist; it ends at the first command that fails.
fn script(steps: &[Step]) -> String {
    let mut text = String::new();
    for (at, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "{{\n{}}} >\"$OUTPUTS/{at}\" 2>&1 </dev/null", step.command);
    }
    text
}

fn guide(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders up");
    root.join("docs/guides").join(name).with_extension("md")
}

fn follow(name: &str) {
    let page = guide(name);
    let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let steps = steps(&text);
    assert!(!steps.is_empty(), "{}: nothing to run", page.display());
    let datastore = Datastore::called("unstun-data");
    let guests = datastore.beside("guests");
    let daemon = datastore.start_as(&["--guests-dir", guests.to_str().expect("UTF-8")]);
    let web = datastore.json("status")["web"][0].as_str().unwrap().to_owned();
    let outputs = datastore.beside(OUTPUTS);
    fs::create_dir(&outputs).unwrap();
    let status = shell(&datastore, &format!("{}{}", at_web(&web), script(&steps)));
    let said: Vec<String> = (0..steps.len())
        .map_while(|at| fs::read(outputs.join(at.to_string())).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect();
    for (step, said) in steps.iter().zip(&said) {
        let place = || format!("{}:{}: {}", page.display(), step.line, step.command);
        if let Some(line) = missing(&step.expected, said) {
            panic!("{}does not say: {line}\nbut: {said}", place());
        }
    }
    let last = said.len().checked_sub(1).unwrap_or_else(|| panic!("bash: {status}"));
    let Step { line, command, .. } = &steps[last];
    assert!(status.success(), "{}:{line}: {command}{status}: {}", page.display(), said[last]);
    daemon.stop();
}

/// Sends requests to the default address to the test's daemon, whose port is any free one.
fn at_web(url: &str) -> String {
    format!("curl() {{ command curl \"${{@/http:\\/\\/127.0.0.1:8484/{}}}\"; }}\n", url.replace('/', "\\/"))
}

fn shell(datastore: &Datastore, script: &str) -> std::process::ExitStatus {
    let programs = Path::new(env!("CARGO_BIN_EXE_unstun")).parent().expect("in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("timeout")
        .args(["--kill-after=5", GUIDE_SECONDS_MAX, "bash", "-e", "-o", "pipefail", "-c", script])
        .current_dir(datastore.beside(""))
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("OUTPUTS", datastore.beside(OUTPUTS))
        .env("LC_ALL", "C")
        .env_remove("UNSTUN_DATASTORE")
        .status()
        .unwrap_or_else(|e| panic!("timeout: {e}"))
}

#[test]
fn verbs() {
    follow("verbs");
}

#[test]
fn console() {
    follow("console");
}

#[test]
fn first_hour() {
    follow("first-hour");
}

#[test]
fn access() {
    follow("access");
}

#[test]
fn api() {
    follow("api");
}

#[test]
fn attach() {
    follow("attach");
}

#[test]
fn back_up() {
    follow("back-up");
}

#[test]
fn backup_repository() {
    follow("backup-repository");
}

#[test]
fn export() {
    follow("export");
}

#[test]
fn images() {
    follow("images");
}

#[test]
fn lab() {
    follow("lab");
}

#[test]
fn leave_vmware() {
    follow("leave-vmware");
}

#[test]
fn alarms() {
    follow("alarms");
}

#[test]
fn cost() {
    follow("cost");
}

#[test]
fn memory() {
    follow("memory");
}

#[test]
fn policies() {
    follow("policies");
}

#[test]
fn quiesce() {
    follow("quiesce");
}

#[test]
fn read_a_report() {
    follow("read-a-report");
}

#[test]
fn recover() {
    follow("recover");
}

#[test]
fn no_guide_is_left_out() {
    let pages = guide("verbs").parent().expect("in a folder").read_dir().unwrap();
    let mut names: Vec<String> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let followed = [
        "access.md",
        "alarms.md",
        "api.md",
        "attach.md",
        "back-up.md",
        "backup-repository.md",
        // Takes hosts and a cluster of Ceph: `ceph.rs` follows it.
        "cluster.md",
        "console.md",
        "cost.md",
        "export.md",
        "first-hour.md",
        "images.md",
        "lab.md",
        "leave-vmware.md",
        "memory.md",
        "policies.md",
        "quiesce.md",
        "read-a-report.md",
        "recover.md",
        // Takes two hosts and a device between them: `devices.rs` follows it with two daemons.
        "shared-devices.md",
        "verbs.md",
    ];
    assert_eq!(names, followed);
}

#[test]
fn a_page_is_read_as_its_reader_would() {
    let unseen = "Text.\n\n<!-- run\na\nb\n-->\n";
    let console = "```console\n$ one |\n> two\nout\n$ three\n```\n";
    let others = "```sh\n$ never\n```\n\n<!-- run -->\n```sh\nfour\n```\n";
    let step = |line, command: &str, expected: &[&str]| Step {
        line,
        command: command.to_owned(),
        expected: expected.iter().map(|&line| line.to_owned()).collect(),
    };
    let expected = [
        step(3, "a\nb\n", &[]),
        step(8, "one |\ntwo\n", &["out"]),
        step(11, "three\n", &[]),
        step(18, "four\n", &[]),
    ];
    let steps = steps(&format!("{unseen}{console}{others}"));
    assert_eq!(steps, expected);
    assert_eq!(script(&steps).matches("$OUTPUTS/").count(), expected.len());
}

#[test]
fn what_is_not_said_is_missed() {
    for (shown, said, expected) in [
        ("taken  web@a", "taken  web@a", true),
        ("taken  web@a", "taken  web@ab", false),
        ("stun   ... us", "stun   14 us", true),
        ("stun   ... us", "stun   14 ms", false),
        ("a...b...c", "axxbxxc", true),
        ("a...b...c", "axxcxxb", false),
        ("...", "", true),
    ] {
        assert_eq!(matches(shown, said), expected, "{shown} / {said}");
    }
    let lines = ["one".to_owned(), "three".to_owned()];
    assert_eq!(missing(&lines, "one\ntwo\nthree\n"), None);
    assert_eq!(missing(&lines, "three\none\n"), Some("three"));
}
