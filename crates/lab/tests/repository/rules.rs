//! Rules of the repository. Each takes one file and returns its violations, with the reason.

use crate::source::{Source, is_word, line_of};

pub(crate) const FILE_LINES_MAX: usize = 700;
pub(crate) const FUNCTION_LINES_MAX: usize = 100;

/// Which crates of the workspace a crate may depend on. The top-level crates are `unstun`, `lab` and `crash`.
const MAY_KNOW: [(&str, &[&str]); 10] = [
    ("blk", &[]),
    ("sim", &["blk"]),
    ("vmdk", &["blk"]),
    ("engine", &["blk"]),
    ("export", &["blk"]),
    ("api", &["blk"]),
    ("repo", &["blk"]),
    ("lab", &["api", "blk", "sim", "vmdk", "engine", "export"]),
    ("unstun", &["api", "blk", "vmdk", "engine", "export", "repo"]),
    ("crash", &["blk", "sim", "vmdk", "engine"]),
];

/// Which crates of the workspace the tests of a crate may use beside.
fn tests_may_use(this: &str, name: &str) -> bool {
    match name {
        "sim" => this != "blk",
        "crash" => ["lab", "unstun"].contains(&this),
        "lab" => this == "unstun",
        _ => false,
    }
}

/// The only code that touches memory the compiler does not vouch for: the reactor, and the binding to Ceph's libraries.
const UNSAFE_HOMES: [&str; 2] = ["crates/blk/src/uring", "crates/blk/src/rbd"];

fn is_unsafe_home(source: &Source) -> bool {
    UNSAFE_HOMES.iter().any(|home| source.path.starts_with(home))
}

/// Crates that run under the simulator, where everything is a function of the seed.
const DETERMINISTIC: [&str; 5] = ["blk", "sim", "vmdk", "engine", "export"];

/// Where a word may not occur (folder or file; matches anywhere in code and strings, in any case), and why.
const ABSENT: &[(&str, &[&str], &str)] = &[
    (
        "crates/blk/src/volume.rs",
        &["snapshot", "vmdk"],
        "a volume is blocks; what a snapshot is belongs to the engine",
    ),
    ("crates/blk/src/file.rs", &["snapshot", "vmdk"], "the base crate decides nothing"),
    (
        "crates/export/src",
        &["snapshot", "vmdk", "manifest"],
        "a front end serves volumes, whatever is behind them",
    ),
    (
        "crates/engine/src",
        &["vmdk", "vmfs", "cowd", "sesparse"],
        "the engine reads and writes through layers; formats are in a crate of their own",
    ),
    (
        "crates/engine/src",
        &["blk::socket", "blk::uring"],
        "the engine has no front end and no reactor of its own: it runs in virtual time too",
    ),
    ("crates/engine/src/native", &["redo::"], "the redo and the native store do not depend on each other"),
    ("crates/engine/src/redo", &["native::"], "the redo and the native store do not depend on each other"),
    (
        "crates/vmdk/src",
        &["openoptions", "file::open", "blk::uring", "blk::socket"],
        "names inside a file come from strangers and open only through the caller's gate",
    ),
    (
        "crates/unstun/src/daemon/running",
        &[
            "daemon::bin",
            "daemon::datastore",
            "daemon::relocation",
            "daemon::requests",
            "daemon::state",
            "daemon::vm",
        ],
        "what a core owns does not use the control side; it sends messages",
    ),
    ("crates/api/src", &["tracing::"], "both command lines share it; the daemon logs"),
    ("crates/blk/src", &["tracing::"], "it returns errors and calls back; the daemon logs"),
    ("crates/engine/src", &["tracing::"], "it returns errors and calls back; the daemon logs"),
    ("crates/export/src", &["tracing::"], "it returns errors and calls back; the daemon logs"),
    ("crates/vmdk/src", &["tracing::"], "it returns errors and calls back; the daemon logs"),
    (
        "crates/repo/src",
        &["tracing::", "nbd"],
        "it reads and writes a repository; the callers have the disks",
    ),
    ("crates/sim/src", &["blk::uring"], "the simulated world and the real one share contracts only"),
    ("crates", &["debug_assert!", "debug_assert_eq!"], "an assertion holds in every build: `assert!`"),
];

/// What the machine would answer differently each time.
const WORLDLY: [(&str, &str); 7] = [
    ("std::time::", "time comes from blk::Env, so that it can be virtual"),
    ("std::thread", "one core owns a VM; other threads would make order a matter of luck"),
    ("std::net", "sockets are opened by the reactor"),
    ("std::fs", "files are opened by the reactor, so that they can be simulated"),
    ("std::env::", "the environment of the process is no input of the engine"),
    ("RandomState", "seeded by the machine: two runs of one seed would differ"),
    ("rand::", "chance comes from blk::Env, so that a seed repeats it"),
];

/// Left-overs, and the test that does not test. The `!` is looked for apart, so that spacing does not matter.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Spelled in two halves, because this file is searched too.
const FOREIGN: [(&str, &str); 6] = [
    (concat!("crates", ".io"), "a registry's host is the builder's choice"),
    (concat!("deb.debian", ".org"), "a mirror is the machine's choice"),
    (concat!("/work", "/"), "a path of one machine"),
    (concat!("/root", "/"), "a path of one machine"),
    (concat!("/home", "/"), "a path of one machine"),
    (concat!("/tmp/", "target"), "a path of one machine"),
];

fn at(source: &Source, line: usize, complaint: &str) -> String {
    format!("{}:{line}: {complaint}", source.path)
}

/// Where `word` occurs and is no part of a longer word.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = |at: usize| text.as_bytes().get(at).copied().unwrap_or(b' ');
    let (first, last) = (word.as_bytes()[0], word.as_bytes()[word.len() - 1]);
    text.match_indices(word).map(|(n, _)| n).filter(move |n| {
        let longer_before = *n > 0 && is_word(first) && is_word(bytes(n - 1));
        let longer_after = is_word(last) && is_word(bytes(n + word.len()));
        !longer_before && !longer_after
    })
}

/// Dependencies, from a crate's Cargo.toml. Tests may run a crate under the simulator.
pub(crate) fn arrows(source: &Source) -> Vec<String> {
    let Some((this, may)) =
        MAY_KNOW.iter().find(|(this, _)| source.path == format!("crates/{this}/Cargo.toml"))
    else {
        return Vec::new();
    };
    let mut section = "";
    let mut found = Vec::new();
    for (n, line) in source.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or("");
        let is_ours = MAY_KNOW.iter().any(|(other, _)| *other == name);
        let by_tests = section == "[dev-dependencies]" && tests_may_use(this, name);
        if section.contains("dependencies") && is_ours && !may.contains(&name) && !by_tests {
            let known = if may.is_empty() { "no other crate".into() } else { may.join(", ") };
            found.push(at(source, n + 1, &format!("{this} depends on {name}, expected at most {known}: crates are combined in a top-level one")));
        }
    }
    found
}

pub(crate) fn unsafe_stays_home(source: &Source) -> Vec<String> {
    if !source.is_rust() || is_unsafe_home(source) {
        return Vec::new();
    }
    let reason = "unsafe outside of the reactor and of the binding to Ceph: two places to review";
    words(&source.code, "unsafe").map(|n| at(source, line_of(&source.code, n), reason)).collect()
}

pub(crate) fn absences(source: &Source) -> Vec<String> {
    if !source.is_shipped() {
        return Vec::new();
    }
    let code = source.without_tests(&source.code_and_strings).to_lowercase();
    let mut found = Vec::new();
    for (place, banned, why) in ABSENT.iter().filter(|(place, ..)| source.path.starts_with(place)) {
        for word in *banned {
            let complaint = format!("`{word}` in {place}: {why}");
            found.extend(code.match_indices(word).map(|(n, _)| at(source, line_of(&code, n), &complaint)));
        }
    }
    found
}

pub(crate) fn determinism(source: &Source) -> Vec<String> {
    let exempt = is_unsafe_home(source) || !DETERMINISTIC.contains(&source.crate_name());
    if !source.is_shipped() || exempt {
        return Vec::new();
    }
    let code = source.without_tests(&source.code);
    let hits = WORLDLY.iter().flat_map(|(word, why)| words(&code, word).map(move |n| (n, word, why)));
    hits.map(|(n, word, why)| at(source, line_of(&code, n), &format!("`{word}`: {why}"))).collect()
}

pub(crate) fn finished(source: &Source) -> Vec<String> {
    if !source.is_rust() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for name in UNFINISHED {
        for n in words(&source.code, name).filter(|n| source.code[n + name.len()..].starts_with('!')) {
            found.push(at(
                source,
                line_of(&source.code, n),
                &format!("`{name}!`: what is not done is not there"),
            ));
        }
    }
    for (n, _) in source.code.match_indices("#[ignore") {
        found.push(at(
            source,
            line_of(&source.code, n),
            "an ignored test proves nothing: make it a soak, or remove it",
        ));
    }
    for n in words(&source.code, "thread::sleep") {
        let why = "a sleep waits too long or not long enough: wait for the condition";
        found.push(at(source, line_of(&source.code, n), why));
    }
    found
}

pub(crate) fn ascii(source: &Source) -> Vec<String> {
    let odd = source.text.char_indices().filter(|(_, c)| !c.is_ascii());
    odd.map(|(n, c)| at(source, line_of(&source.text, n), &format!("{c:?}: ASCII reads alike everywhere")))
        .collect()
}

pub(crate) fn sizes(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let lines = source.text.lines().count();
    if source.is_rust() && lines > FILE_LINES_MAX {
        let why = format!("{lines} lines, at most {FILE_LINES_MAX}: a file this long holds two ideas");
        found.push(at(source, 1, &why));
    }
    for (line, lines, name) in source.functions() {
        if source.is_rust() && lines > FUNCTION_LINES_MAX {
            let why =
                format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}: it should fit a screen");
            found.push(at(source, line, &why));
        }
    }
    found
}

pub(crate) fn no_foreign_places(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (word, why) in FOREIGN {
        // Not the middle of a relative path.
        let hits = source.text.match_indices(word).map(|(n, _)| n);
        let alone = hits.filter(|n| !n.checked_sub(1).is_some_and(|b| is_word(source.text.as_bytes()[b])));
        found.extend(alone.map(|n| {
            at(
                source,
                line_of(&source.text, n),
                &format!("names {word}: {why}, and the next reader has another"),
            )
        }));
    }
    found
}

/// A page about a format says which source it describes, `<!-- describes PATH FINGERPRINT -->`, and goes stale with it.
pub(crate) fn described_source(page: &Source, of: impl Fn(&str) -> Option<u64>) -> Vec<String> {
    let marks = page.text.lines().enumerate().filter_map(|(n, line)| {
        let inner = line.trim().strip_prefix("<!-- describes ")?.strip_suffix(" -->")?;
        let (path, print) = inner.split_once(' ')?;
        Some((n + 1, path, print))
    });
    let mut marked = false;
    let mut found = Vec::new();
    for (line, path, print) in marks {
        marked = true;
        match of(path).map(|n| format!("{n:016x}")) {
            None => found.push(at(page, line, &format!("describes {path}, which is not there"))),
            Some(now) if now != print => {
                let ask = "read the page against the code, correct it, then put the new fingerprint";
                found.push(at(page, line, &format!("{path} has changed ({now}): {ask}")));
            }
            Some(_) => {}
        }
    }
    if !marked {
        found.push(at(
            page,
            1,
            "no `<!-- describes PATH FINGERPRINT -->`: a page tied to nothing grows old unseen",
        ));
    }
    found
}

/// Paths in backquotes must exist, and `path:symbol` must hold the symbol: a map that lies is worse than none.
pub(crate) fn map_is_true(page: &Source, text_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (n, line) in page.text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let (path, symbol) = quoted.split_once(':').unwrap_or((quoted, ""));
            let tops = ["crates/", "docs/", "scripts/", "bench/", ".ci/"];
            if !tops.iter().any(|top| path.starts_with(top)) || path.contains(['*', ' ', '{']) {
                continue;
            }
            match text_of(path) {
                None => {
                    found.push(at(page, n + 1, &format!("`{path}` is not there: the map must be kept true")));
                }
                Some(text) if !symbol.is_empty() && words(&text, symbol).next().is_none() => {
                    found.push(at(
                        page,
                        n + 1,
                        &format!("`{path}` has no {symbol}: the map must be kept true"),
                    ));
                }
                Some(_) => {}
            }
        }
    }
    found
}
