//! Tests of the repository: what a crate must not contain, since its own code cannot show that.
//! `docs/ARCHITECTURE.md` says the same in words. Not checked: what macros expand to, and code in documentation.

mod imports;
mod planted;
mod rules;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::Source;

/// Never part of the source.
const SKIPPED: [&str; 4] = ["target", "unstun-data", "__pycache__", "fuzz-corpus"];
const TEXTS: [&str; 6] = ["rs", "md", "toml", "sh", "py", "yml"];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate is two folders down").to_path_buf()
}

fn collect(folder: &Path, root: &Path, found: &mut Vec<Source>) {
    let entries = fs::read_dir(folder).expect("readable");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().expect("an entry").to_string_lossy().into_owned();
        if SKIPPED.contains(&&*name) || (name.starts_with('.') && name != ".ci") {
            continue;
        }
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            collect(&path, root, found);
        } else if TEXTS.contains(&&*extension) || name == "Makefile" || name == "run" {
            let text = fs::read_to_string(&path).expect("text is UTF-8");
            let relative = path.strip_prefix(root).expect("below the root");
            found.push(Source::new(&relative.to_string_lossy(), &text));
        }
    }
}

fn tree() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root(), &root(), &mut found);
    assert!(found.len() > 50, "only {} files: the search looks in the wrong place", found.len());
    found
}

fn check(rule: impl Fn(&Source) -> Vec<String>) {
    report(tree().iter().flat_map(rule).collect());
}

fn report(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} violations\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn crates_depend_on_the_base_and_not_on_one_another() {
    check(rules::arrows);
}

#[test]
fn unsafe_code_stays_in_the_reactor() {
    check(rules::unsafe_stays_home);
}

#[test]
fn what_a_crate_must_not_contain_is_absent() {
    check(rules::absences);
}

#[test]
fn the_engine_side_asks_the_machine_nothing() {
    check(rules::determinism);
}

#[test]
fn nothing_is_unfinished_and_no_test_sleeps() {
    check(rules::finished);
}

#[test]
fn sources_are_ascii() {
    check(rules::ascii);
}

#[test]
fn files_and_functions_stay_small() {
    check(rules::sizes);
}

#[test]
fn no_registry_and_no_machine_is_named() {
    check(rules::no_foreign_places);
}

#[test]
fn format_pages_follow_their_source() {
    let tree = tree();
    let fingerprint = |path: &str| tree.iter().find(|s| s.path == path).map(Source::fingerprint);
    let pages = tree.iter().filter(|s| s.path.starts_with("docs/formats/"));
    report(pages.flat_map(|page| rules::described_source(page, fingerprint)).collect());
}

#[test]
fn the_map_is_true() {
    let text_of = |path: &str| {
        let path = root().join(path);
        if path.is_dir() { Some(String::new()) } else { fs::read_to_string(path).ok() }
    };
    let pages: Vec<_> = tree().into_iter().filter(|s| s.path.ends_with(".md")).collect();
    report(pages.iter().flat_map(|page| rules::map_is_true(page, text_of)).collect());
}

#[test]
fn files_import_each_other_in_one_direction() {
    let found = imports::circles(&tree());
    let kept: Vec<Vec<String>> =
        imports::KEPT.iter().map(|files| files.iter().map(ToString::to_string).collect()).collect();
    let new = found.iter().filter(|circle| !kept.contains(circle));
    let new = new.map(|circle| {
        format!("{} import each other: move what they share into a file below both", circle.join(", "))
    });
    let gone = kept.iter().filter(|circle| !found.contains(circle));
    let gone = gone
        .map(|circle| format!("{} import each other no more: take the line out of KEPT", circle.join(", ")));
    report(new.chain(gone).collect());
}

/// A file that no `mod` names is compiled by nobody and rots.
#[test]
fn every_source_file_is_compiled() {
    let tree = tree();
    let rust = || tree.iter().filter(|s| s.is_rust() && s.path.contains("/src/"));
    let names_it = |file: &Source, stem: &str| {
        let (module, by_path) = (format!("mod {stem};"), format!("#[path = \"{stem}.rs\"]"));
        let says = |s: &Source| s.code.contains(&module) || s.code_and_strings.contains(&by_path);
        rust().any(|s| s.crate_name() == file.crate_name() && says(s))
    };
    let orphans = rust().filter_map(|file| {
        let path = Path::new(&file.path);
        let stem = path.file_stem().expect("a file").to_string_lossy();
        let stem = if stem == "mod" { path.parent()?.file_name()?.to_string_lossy() } else { stem };
        let is_root = stem == "lib" || stem == "main" || file.path.contains("/src/bin/");
        (!is_root && !names_it(file, &stem)).then(|| format!("{}: no `mod {stem};` names it", file.path))
    });
    report(orphans.collect());
}
