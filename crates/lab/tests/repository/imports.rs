//! Files of one crate that import each other, directly or over others.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// Circles that stay, each because its files are one idea: files of `crates/`, without `src/` and `.rs`.
pub(crate) const KEPT: [&[&str]; 4] = [
    // A link counts its unwritten tables, and their limit flushes links.
    &["engine/redo/link", "engine/redo/unwritten"],
    // A reply holds its place on the connection that sends it.
    &["export/nbd/connection", "export/nbd/outbox"],
    // Device models nest in each other.
    &["sim/device/cached", "sim/device/group", "sim/device/model", "sim/device/remote", "sim/device/tiered"],
    // Files that read and write the texts and the bin of one home.
    &["vmdk/home", "vmdk/home/bin", "vmdk/home/state", "vmdk/home/write"],
];

/// Path of a module in its crate: `["redo", "map"]`.
type Module = Vec<String>;

/// Returns the circles of all crates, each as the sorted list of its files.
pub(crate) fn circles(tree: &[Source]) -> Vec<Vec<String>> {
    let shipped = tree.iter().filter(|source| source.is_shipped() && !source.path.contains("/tests/"));
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    shipped.for_each(|source| crates.entry(source.crate_name()).or_default().push(source));
    crates.iter().flat_map(|(name, sources)| circles_of(name, sources)).collect()
}

fn circles_of(name: &str, sources: &[&Source]) -> Vec<Vec<String>> {
    let modules: BTreeSet<Module> = sources.iter().map(|source| module(source)).collect();
    let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for source in sources {
        imports.insert(module(source), imported(source, &modules));
    }
    let reach: BTreeMap<_, _> = imports.keys().map(|from| (from, reached(from, &imports))).collect();
    let mut found = BTreeSet::new();
    for from in imports.keys().filter(|from| reach[from].contains(*from)) {
        let circle = reach[from].iter().filter(|to| reach[*to].contains(from));
        found.insert(circle.map(|module| format!("{name}/{}", module.join("/"))).collect::<Vec<_>>());
    }
    found.into_iter().collect()
}

fn module(source: &Source) -> Module {
    let path = source.path.split_once("/src/").map_or("", |(_, path)| path).trim_end_matches(".rs");
    let parts = path.split('/').filter(|part| !["lib", "main", "mod"].contains(part));
    parts.map(str::to_owned).collect()
}

fn reached<'a>(from: &Module, imports: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&'a Module> = imports[from].iter().collect();
    while let Some(next) = open.pop() {
        if reached.insert(next.clone()) {
            open.extend(&imports[next]);
        }
    }
    reached
}

/// Returns the modules that a file imports from; not the crate's root, which re-exports.
fn imported(source: &Source, modules: &BTreeSet<Module>) -> BTreeSet<Module> {
    let (own, code) = (module(source), source.without_tests(&source.code));
    let mut found = BTreeSet::new();
    for (is_public, statement) in uses(&code) {
        for path in expand(statement) {
            let Some(full) = absolute(&own, &path) else { continue };
            let target = (1..=full.len()).rev().find_map(|n| modules.get(&full[..n]));
            // A re-export of a child is no use of it.
            let is_child = |target: &Module| target.len() > own.len() && target.starts_with(&own);
            found
                .extend(target.filter(|target| **target != own && !(is_public && is_child(target))).cloned());
        }
    }
    found
}

/// Returns the paths of the `use` statements at the beginning of a line, and whether each is public.
fn uses(code: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = &code[code[..at].rfind('\n').map_or(0, |n| n + 1)..at];
        let is_statement = line.trim().is_empty() || line.trim_start().starts_with("pub");
        let Some(end) = code[at..].find(';').filter(|_| is_statement) else { continue };
        found.push((!line.trim().is_empty(), &code[at + "use ".len()..at + end]));
    }
    found
}

/// Returns the plain paths of a path with braces: `a::{b, c::{d, e}}` gives `a::b`, `a::c::d` and `a::c::e`.
fn expand(path: &str) -> Vec<String> {
    let Some(open) = path.find('{') else {
        return vec![path.split(" as ").next().unwrap_or("").trim().to_owned()];
    };
    let (prefix, rest) = (&path[..open], &path[open + 1..]);
    let body = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&body[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[from..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(|part| expand(&format!("{}{part}", prefix.trim()))).collect()
}

/// Returns the path from the crate's root; None for a path into another crate.
fn absolute(own: &Module, path: &str) -> Option<Module> {
    let mut parts = path.split("::").map(str::trim).peekable();
    let mut full = match parts.next()? {
        "crate" => Vec::new(),
        "self" => own.clone(),
        "super" => own[..own.len().saturating_sub(1)].to_vec(),
        child => [own.as_slice(), &[child.to_owned()]].concat(),
    };
    while parts.next_if_eq(&"super").is_some() {
        full.pop();
    }
    full.extend(parts.map(str::to_owned));
    Some(full)
}
