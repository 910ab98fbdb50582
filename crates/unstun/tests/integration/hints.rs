//! Every command and option that a message, a help text or a page recommends exists and is accepted by the command line.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};
use unstun::cli::Cli;

/// Options of other programs, and of the packager's commands, that our texts name.
const OTHERS_OPTIONS: [&str; 18] = [
    "--args",
    "--base-time",
    "--chunk",
    "--compress",
    "--delete",
    "--iterations",
    "--list",
    "--output",
    "--fork",
    "--preserve",
    "--read-only",
    "--shared",
    "--socket",
    "--sparse",
    "--target-is-zero",
    "--help",
    "--version",
    "--unknown",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate is two folders down")
        .to_path_buf()
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|found| found == ending) {
            found.push(path);
        }
    }
}

/// The sources of what a user reads: messages of these crates, the README and the guides.
fn texts() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md")];
    for name in ["api", "blk", "engine", "export", "unstun", "vmdk"] {
        files(&root().join("crates").join(name).join("src"), "rs", &mut paths);
    }
    let lab = root().join("crates/lab/src");
    paths.extend(["cli.rs", "command.rs", "demo.rs"].map(|name| lab.join(name)));
    ["command", "demo"].into_iter().for_each(|name| files(&lab.join(name), "rs", &mut paths));
    files(&root().join("docs/guides"), "md", &mut paths);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("UTF-8");
        (path.display().to_string(), without_tests(&quoted(&joined(&text))).to_owned())
    };
    paths.into_iter().map(read).collect()
}

/// A string that goes on in the next line of the source is one line.
fn joined(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\\n") {
        out.push_str(before);
        rest = after.trim_start();
    }
    out.push_str(rest);
    out
}

/// Commands that a page of the console shows as code, in backquotes.
fn quoted(text: &str) -> String {
    let mut pieces = text.split("code { \"unstun ");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (command, rest) = piece.split_once('"').expect("a string ends");
        out.push_str(&format!("code {{ `unstun {command}`{rest}"));
    }
    out
}

fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(before, _)| before)
}

/// What stands between backquotes and begins with `unstun `.
fn commands(text: &str) -> Vec<String> {
    let lines = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned));
    lines.filter(|command| command.starts_with("unstun ")).collect()
}

/// Lines of source that name a command without the backquotes by which `commands` finds it. Comments, the command lines that the
/// demo and the lab record, and the two lines that a page of help indents are none.
fn unquoted(text: &str) -> Vec<String> {
    let names: Vec<String> = Cli::command().get_subcommands().map(|own| own.get_name().to_owned()).collect();
    let outside = |line: &str| line.split('`').step_by(2).collect::<Vec<_>>().join("");
    let named = |line: &str| {
        line.split("unstun ").skip(1).any(|rest| {
            let word = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
            names.iter().any(|name| name == word)
        })
    };
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(outside).filter(|line| named(line)).map(|line| line.trim().to_owned()).collect()
}

/// Placeholders become values of their kind. What an ellipsis stands for is left out, with the option that it belongs to.
fn words(command: &str) -> Vec<String> {
    let (said, elided) = command.split_once("...").map_or((command, false), |(said, _)| (said, true));
    let mut words: Vec<String> = said.split_whitespace().map(value).collect();
    if elided && words.last().is_some_and(|word| word.starts_with("--")) {
        words.pop();
    }
    words
}

fn value(word: &str) -> String {
    let name = word.trim_matches(|c: char| "{}[]|,.".contains(c));
    let lifeless = word.starts_with('{') || name.chars().all(|c| c.is_ascii_uppercase() || "/-_".contains(c));
    match name {
        _ if word.starts_with("--") || word.starts_with('-') => word.trim_end_matches([',', ']']).to_owned(),
        "0" | "id" | "ID" | "N" => "1".to_owned(),
        "VM@NAME" | "VM@SNAPSHOT" => "web@a".to_owned(),
        "VM/diskN" => "web/disk0".to_owned(),
        "SIZE" => "1G".to_owned(),
        _ if lifeless => "web".to_owned(),
        _ => word.trim_end_matches(']').trim_start_matches('[').to_owned(),
    }
}

/// Why the command line refuses a hint; an abbreviated one ("see `unstun job limit`") may leave arguments out.
fn refusal(command: &str) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words(command)).err()?;
    match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelp
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => None,
        _ => Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_command_in_a_message_or_page_is_accepted() {
    let mut refused = Vec::new();
    let mut seen = 0;
    for (path, text) in texts() {
        for command in commands(&text) {
            seen += 1;
            refused.extend(refusal(&command).map(|why| format!("{path}: `{command}`: {why}")));
        }
    }
    assert!(seen > 40, "only {seen} commands were found: the search looks in the wrong place");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(refusal("unstun vm forget web").is_some(), "a planted command");
    assert!(refusal("unstun vm remove web --disks").is_some(), "a planted option");
}

#[test]
fn a_message_quotes_each_command_that_it_names() {
    let allowed = |path: &str| path.contains("crates/lab/") || path.ends_with("command/snapshot.rs");
    let sources = texts().into_iter().filter(|(path, _)| path.ends_with(".rs") && !path.contains("tests"));
    let found = sources.filter(|(path, _)| !allowed(path));
    let found =
        found.flat_map(|(path, text)| unquoted(&text).into_iter().map(move |line| format!("{path}: {line}")));
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let planted = "let a = 1;\nlet remedy = \"end it (unstun vm remove), or `unstun up`\";";
    assert_eq!(unquoted(planted).len(), 1);
}

/// Long options of all commands.
fn known(command: &Command, found: &mut Vec<String>) {
    found.extend(command.get_arguments().filter_map(|arg| arg.get_long()).map(|long| format!("--{long}")));
    command.get_subcommands().for_each(|command| known(command, found));
}

fn options(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("--") {
        let free = text[..at].chars().next_back().is_none_or(|c| " `(\"".contains(c));
        let end = text[at + 2..]
            .find(|c: char| !c.is_ascii_lowercase() && c != '-')
            .map_or(text.len(), |n| at + 2 + n);
        let option = text[at..end].trim_end_matches('-');
        if free && option.len() > 3 {
            found.push(option);
        }
    }
    found
}

#[test]
fn every_option_in_a_message_exists() {
    let mut all = OTHERS_OPTIONS.map(str::to_owned).to_vec();
    known(&Cli::command(), &mut all);
    let mut unknown = Vec::new();
    for (path, text) in texts().into_iter().filter(|(path, _)| path.ends_with(".rs")) {
        let found = options(&text).into_iter().filter(|option| !all.iter().any(|known| known == option));
        unknown.extend(found.map(|option| format!("{path}: {option}")));
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert_eq!(options("end them with --no-such-option"), ["--no-such-option"], "a planted option is seen");
}
