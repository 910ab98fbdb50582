//! Computes the hash of everything that decides a prediction, and holds the frozen state against it.

use std::path::{Path, PathBuf};

use lab::experiment::frozen::state;
use lab::experiment::{Experiment, find, shipped};
use lab::run::Use;

/// Folders of the repository whose files decide a prediction.
const SOURCES: [&str; 5] = [
    "crates/lab/src/vmware",
    "crates/lab/src/peers",
    "crates/lab/src/storage",
    "crates/sim/src/device",
    "experiments/storage",
];
/// Hexadecimal digits of the hash that are printed: 48 bits.
const DIGITS: usize = 12;

/// Returns the hash of the sources below `root` and of the experiments.
///
/// Errors: a folder that cannot be read.
fn hash(root: &Path, experiments: &[Experiment]) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    for folder in SOURCES {
        for path in files(&root.join(folder))? {
            hasher.update(code(&std::fs::read_to_string(path)?).as_bytes());
        }
    }
    for experiment in experiments {
        hasher.update(format!("{:?}", decisive(experiment)).as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..DIGITS].to_string())
}

/// Returns the files below a folder without tests, in the order of their paths.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(self::files(&path)?),
            false if path.to_string_lossy().ends_with("tests.rs") => {}
            false => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the lines of a file without comments, white space at their ends, and the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//") && !line.starts_with('#');
    text.lines().map(str::trim).filter(is_code).flat_map(|line| [line, "\n"]).collect()
}

/// Returns the parts of an experiment that a run depends on: of its figures those that are fitted to or put in.
fn decisive(experiment: &Experiment) -> Experiment {
    let mut experiment = experiment.clone();
    experiment.published.retain(|cell| matches!(cell.r#use, Use::Baseline | Use::Input));
    experiment.published.iter_mut().for_each(|cell| cell.note.clear());
    experiment.unknowns.iter_mut().for_each(|unknown| unknown.note.clear());
    experiment.notes.clear();
    (experiment.title, experiment.source, experiment.article) = (String::new(), String::new(), None);
    experiment
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_change_of_what_decides_a_prediction_needs_a_new_state() {
    let hash = hash(&root(), &shipped().unwrap()).unwrap();
    assert_eq!(
        state().hash,
        hash,
        "the models have changed: give experiments/frozen.toml a new name, the date and the hash {hash}, and write \
         what it changed into docs/guides/lab.md; `unstun lab reproduce --index docs/published.md` makes the page anew"
    );
}

#[test]
fn the_hash_follows_code_and_inputs_and_nothing_else() {
    let comment = "/// A rule.\nfn rule() -> u32 {\n    1\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
    let other = "/// Another sentence.\nfn rule() -> u32 {\n    1\n}\n";
    assert_eq!(code(comment), code(other));
    assert_ne!(code(comment), code(&other.replace('1', "2")));
    let experiment = find("zandboer-saturated").unwrap();
    let shown = |e: &Experiment| format!("{:?}", decisive(e));
    let mut other = experiment.clone();
    other.published.iter_mut().filter(|c| c.r#use == Use::Predict).for_each(|c| c.value = Some(1.0));
    assert_eq!(shown(&other), shown(&experiment), "an outcome decides nothing");
    other.published.iter_mut().filter(|c| c.r#use == Use::Baseline).for_each(|c| c.value = Some(1.0));
    assert_ne!(shown(&other), shown(&experiment));
}
