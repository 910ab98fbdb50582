//! The audit of what is counted, on all experiments. It takes minutes, so `make test-all` runs it (LAB_AUDIT).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unstun-lab")).args(arguments).output().expect("the program runs")
}

/// Returns whether the audit is to run; prints why not otherwise.
fn is_wanted(name: &str) -> bool {
    let wanted = std::env::var_os("LAB_AUDIT").is_some();
    if !wanted {
        // Not by `println`, which a passing test does not show.
        let reason = "LAB_AUDIT is not set; make test-all sets it";
        writeln!(std::io::stdout(), "SKIPPED {name}: {reason}").expect("stdout is open");
    }
    wanted
}

#[test]
fn no_counted_figure_is_implied() {
    if !is_wanted("no_counted_figure_is_implied") {
        return;
    }
    let Output { status, stdout, stderr } = lab(&["sensitivity"]);
    let text = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "{text}\n{}", String::from_utf8_lossy(&stderr));
    println!("{text}");
}

#[test]
fn the_index_of_the_articles_shows_what_the_models_predict() {
    if !is_wanted("the_index_of_the_articles_shows_what_the_models_predict") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("published.md");
    let Output { status, stderr, .. } = lab(&["reproduce", "--index", made.to_str().unwrap()]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let kept: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/published.md");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (made, kept) = (read(&made), read(&kept));
    let differs = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    assert!(made == kept, "`unstun lab reproduce --index docs/published.md` makes another page: {differs:?}");
}
