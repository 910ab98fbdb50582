//! Each rule can fail: a violation is planted, and its legal neighbour is not mistaken for one.

use crate::imports;
use crate::rules;
use crate::source::Source;

type Rule = fn(&Source) -> Vec<String>;

fn finds(rule: Rule, path: &str, text: &str) {
    assert_eq!(rule(&Source::new(path, text)).len(), 1, "not found in {path}: {text}");
}

fn accepts(rule: Rule, path: &str, text: &str) {
    assert_eq!(rule(&Source::new(path, text)), [""; 0], "{path}: {text}");
}

#[test]
fn a_forbidden_arrow() {
    finds(
        rules::arrows,
        "crates/engine/Cargo.toml",
        "[dependencies]\nblk.workspace = true\nvmdk.workspace = true\n",
    );
    finds(rules::arrows, "crates/vmdk/Cargo.toml", "[dev-dependencies]\nengine = { path = \"../engine\" }\n");
    accepts(rules::arrows, "crates/vmdk/Cargo.toml", "[dev-dependencies]\nsim.workspace = true\n");
    finds(rules::arrows, "crates/vmdk/Cargo.toml", "[dependencies]\nsim.workspace = true\n");
    finds(rules::arrows, "crates/blk/Cargo.toml", "[dependencies]\nengine.workspace = true\n");
    for name in ["crash", "lab", "sim"] {
        finds(
            rules::arrows,
            "crates/unstun/Cargo.toml",
            &format!("[dependencies]\n{name}.workspace = true\n"),
        );
    }
    accepts(rules::arrows, "crates/unstun/Cargo.toml", "[dev-dependencies]\ncrash.workspace = true\n");
    accepts(
        rules::arrows,
        "crates/lab/Cargo.toml",
        "[dependencies]\nsim.workspace = true\nvmdk.workspace = true\n",
    );
    accepts(
        rules::arrows,
        "crates/sim/Cargo.toml",
        "[package]\nname = \"sim\"\n[dependencies]\nblk.workspace = true\n",
    );
}

#[test]
fn unsafe_in_the_wrong_crate() {
    let text = "fn f() { unsafe { g() } }";
    finds(rules::unsafe_stays_home, "crates/engine/src/redo/map.rs", text);
    accepts(rules::unsafe_stays_home, "crates/blk/src/uring/ring.rs", text);
    accepts(
        rules::unsafe_stays_home,
        "crates/engine/src/redo/map.rs",
        "// unsafe\nlet unsafe_code = \"unsafe\";",
    );
}

#[test]
fn a_word_that_a_crate_must_not_contain() {
    finds(rules::absences, "crates/export/src/nbd/front_end.rs", "fn at_snapshot() {}");
    finds(rules::absences, "crates/engine/src/redo/take.rs", "let magic = \"COWD\";");
    finds(rules::absences, "crates/engine/src/native/vm/mod.rs", "use crate::redo::Vm;");
    finds(rules::absences, "crates/vmdk/src/cowd.rs", "let f = std::fs::File::open(name);");
    finds(rules::absences, "crates/export/src/nbd/work.rs", "tracing::warn!(\"slow\");");
    finds(rules::absences, "crates/blk/src/buf.rs", "fn f() { debug_assert!(g()); }");
    finds(rules::absences, "crates/unstun/src/daemon/running/vm.rs", "use crate::daemon::state::Daemon;");
    accepts(rules::absences, "crates/engine/src/redo/take.rs", "fn snapshot() {} // as VMFSsparse does\n");
    accepts(
        rules::absences,
        "crates/engine/src/redo/take.rs",
        "#[cfg(test)]\nmod tests { const A: &str = \"vmdk\"; }",
    );
}

#[test]
fn a_question_to_the_machine() {
    finds(rules::determinism, "crates/engine/src/redo/fold.rs", "let t = std::time::Instant::now();");
    finds(rules::determinism, "crates/sim/src/world.rs", "use std::fs;");
    accepts(rules::determinism, "crates/blk/src/uring/ring.rs", "let t = std::time::Instant::now();");
    accepts(rules::determinism, "crates/unstun/src/daemon.rs", "std::thread::spawn(run);");
    accepts(rules::determinism, "crates/engine/src/redo/fold.rs", "operand::x(); std::timely::y();");
}

#[test]
fn something_unfinished() {
    finds(rules::finished, "crates/lab/src/lib.rs", "fn f() { todo!() }");
    finds(rules::finished, "crates/crash/tests/crash_campaigns/redo.rs", "#[test]\n#[ignore]\nfn f() {}");
    finds(rules::finished, "crates/unstun/tests/clients.rs", "std::thread::sleep(SECOND);");
    accepts(rules::finished, "crates/lab/src/lib.rs", "fn todo() { \"dbg!\"; } // todo!()");
}

#[test]
fn a_letter_beyond_ascii() {
    finds(rules::ascii, "README.md", "caf\u{e9}");
    accepts(rules::ascii, "README.md", "cafe");
}

#[test]
fn something_too_long() {
    let lines = rules::FUNCTION_LINES_MAX;
    let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
    finds(rules::sizes, "crates/lab/src/lib.rs", &function(lines + 1));
    accepts(rules::sizes, "crates/lab/src/lib.rs", &function(lines));
    finds(rules::sizes, "crates/lab/src/lib.rs", &"fn f() {}\n".repeat(rules::FILE_LINES_MAX + 1));
}

#[test]
fn a_place_of_one_machine() {
    finds(rules::no_foreign_places, "scripts/setup.sh", &format!("cd {}/x", concat!("/ro", "ot")));
    finds(rules::no_foreign_places, "README.md", &format!("see {}", concat!("crates.", "io")));
    accepts(rules::no_foreign_places, "README.md", "see docs/ARCHITECTURE.md");
}

#[test]
fn a_page_older_than_its_source() {
    let source = Source::new("crates/vmdk/src/cowd.rs", "const MAGIC: u32 = 1;");
    let of = |path: &str| (path == source.path).then(|| source.fingerprint());
    let page = |mark: &str| Source::new("docs/formats/cowd.md", mark);
    let fresh = format!("# COWD\n<!-- describes crates/vmdk/src/cowd.rs {:016x} -->\n", source.fingerprint());
    assert_eq!(rules::described_source(&page(&fresh), of), [""; 0]);
    for stale in [
        "# COWD\n".to_string(),
        "<!-- describes crates/vmdk/src/cowd.rs 0000000000000000 -->".to_string(),
        "<!-- describes crates/vmdk/src/gone.rs 0000000000000000 -->".to_string(),
    ] {
        assert_eq!(rules::described_source(&page(&stale), of).len(), 1, "{stale}");
    }
}

#[test]
fn a_map_that_lies() {
    let text_of = |path: &str| (path == "crates/blk/src/file.rs").then(|| "pub struct File;".to_string());
    let complaints = |text: &str| rules::map_is_true(&Source::new("README.md", text), text_of).len();
    assert_eq!(complaints("see `crates/blk/src/file.rs` and `crates/blk/src/file.rs:File` and `make`"), 0);
    assert_eq!(complaints("see `crates/blk/src/gone.rs`"), 1);
    assert_eq!(complaints("see `crates/blk/src/file.rs:Dir`"), 1);
}

#[test]
fn files_that_import_each_other() {
    let circles = |upper: &str, lower: &str| {
        let tree = [
            Source::new("crates/engine/src/lib.rs", "pub mod upper;\npub use upper::Upper;\n"),
            Source::new("crates/engine/src/upper.rs", upper),
            Source::new("crates/engine/src/upper/lower.rs", lower),
        ];
        imports::circles(&tree)
    };
    let found = vec![vec!["engine/upper".to_owned(), "engine/upper/lower".to_owned()]];
    let upper = "mod lower;\nuse lower::Lower;\n";
    assert_eq!(circles(upper, "use std::{cell::Cell, rc::Rc};\nuse crate::{a, upper::{b, Upper}};\n"), found);
    assert_eq!(circles(upper, "use super::super::upper::Upper;\n"), found);
    let none: Vec<Vec<String>> = Vec::new();
    assert_eq!(circles(upper, "use std::rc::Rc;\nuse super::super::Upper;\n"), none, "the root re-exports");
    assert_eq!(circles("mod lower;\npub use lower::Lower;\n", "use super::Upper;\n"), none, "a re-export");
    assert_eq!(circles(upper, "#[cfg(test)]\nmod tests {\n    use crate::upper::Upper;\n}\n"), none);
}
