//! `lab run --real`: an experiment's own protocol on real stacks, in a short time; failures are results.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::daemon::Datastore;

/// Six seconds for the experiment's runs and limits, and two fills; the working set shrinks with them.
const SHORT: [&str; 4] = ["zandboer-ssd-mirror", "--minutes", "0.1", "--json"];

fn lab_run(datastore: &Datastore) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unstun"));
    command.args(["lab", "run", "--real"]).arg(datastore.beside("measured"));
    command
}

fn record(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

fn figure(record: &Value, phase: &str, quantity: &str) -> f64 {
    let rows = record["rows"].as_array().unwrap();
    let row = rows.iter().rev().find(|row| row["phase"] == phase && row["quantity"] == quantity);
    row.unwrap_or_else(|| panic!("no {quantity} of {phase} in {rows:?}"))["predicted"].as_f64().unwrap()
}

fn assert_nothing_is_left(datastore: &Datastore) {
    let left = std::fs::read_dir(datastore.beside("measured")).unwrap().count();
    assert_eq!(left, 0, "the run's folder is gone");
}

#[test]
fn a_protocol_is_carried_out_on_real_stacks() {
    let datastore = Datastore::new();
    for subject in ["native", "qemu"] {
        let kept = datastore.beside(subject);
        let output = lab_run(&datastore).args(SHORT).args(["--subject", subject, "-o"]).arg(&kept).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("Scaled"), "{said}");
        let record = record(&output);
        assert_eq!((&record["subject"], &record["clock"]), (&subject.into(), &"real".into()));
        assert!(record["notes"].to_string().contains("each duration and limit divided"), "{said}");
        for phase in ["baseline", "snapshot", "after"] {
            assert!(figure(&record, phase, "iops") > 0.0, "{subject}, {phase}: {record}");
        }
        assert!(record["beats"].as_array().is_some_and(|beats| beats.len() > 1), "{subject}: it is pinged");
        // The commit may or may not end under load; the record reports either.
        figure(&record, "commit", "converged");
        assert!(kept.join("run.jsonl").exists() && kept.join("report.html").exists());
    }
    assert_nothing_is_left(&datastore);
}

/// Runs a stack that consists of a file and these hook commands. Returns the exit code, and the end that the record
/// states.
fn by_hooks(datastore: &Datastore, take: &str, commit: &str) -> (Option<i32>, String) {
    let disk = datastore.beside("theirs.img");
    std::fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let output = lab_run(datastore)
        .args(SHORT)
        .arg("--target")
        .arg(&disk)
        .args(["--take", take, "--commit", commit, "--hook-limit", "1"])
        .output()
        .unwrap();
    let record = record(&output);
    assert_eq!(record["subject"], "hooks");
    (output.status.code(), record["end"]["failed"].to_string())
}

#[test]
fn a_stack_that_fails_or_hangs_is_reported_with_its_output() {
    let datastore = Datastore::new();
    let (code, end) = by_hooks(&datastore, "echo no such array >&2; exit 7", "true");
    assert!(code == Some(1) && end.contains("no such array"), "{end}");
    let (code, end) = by_hooks(&datastore, "true", "echo begun; sleep 1000");
    assert!(code == Some(1) && end.contains("time limit") && end.contains("begun"), "{end}");
    assert_nothing_is_left(&datastore);
}

/// Waits until the run has a sample, or has ended.
fn wait_for_sample(lines: &Path, child: &mut std::process::Child) {
    let is_sampled = || std::fs::read_to_string(lines).is_ok_and(|text| text.contains("\"sample\""));
    while !is_sampled() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before a sample");
        std::thread::yield_now();
    }
}

#[test]
fn an_interruption_keeps_what_was_sampled() {
    let datastore = Datastore::new();
    let kept = datastore.beside("kept");
    let mut command = lab_run(&datastore);
    command.args(["zandboer-saturated", "--minutes", "1", "--json", "-o"]).arg(&kept).process_group(0);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_sample(&kept.join("run.jsonl"), &mut child);
    // A terminal signals every process of the group; the run's own servers must not receive the signal.
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let record = record(&output);
    assert_eq!(record["end"], "interrupted", "{record}");
    assert!(!record["samples"].as_array().unwrap().is_empty());
    assert_nothing_is_left(&datastore);
}

/// Returns the command lines of a run's servers that have not exited yet. Each contains the run's folder.
fn servers_of(folder: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(folder.to_str().unwrap())).collect()
}

#[test]
fn servers_go_with_a_run_that_is_killed() {
    let datastore = Datastore::new();
    for subject in ["native", "qemu"] {
        let kept = datastore.beside("kept");
        let mut command = lab_run(&datastore);
        command
            .args(["zandboer-saturated", "--minutes", "1", "--json", "--subject", subject, "-o"])
            .arg(&kept);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for_sample(&kept.join("run.jsonl"), &mut child);
        let folder = datastore.beside("measured").join(format!("unstun-run-{subject}"));
        assert!(!servers_of(&folder).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        while !servers_of(&folder).is_empty() {
            std::thread::yield_now();
        }
        std::fs::remove_dir_all(folder).unwrap();
        std::fs::remove_dir_all(kept).unwrap();
    }
}

/// An experiment of a user; half a minute is long enough to run it unscaled.
const BACKUP: &str = r#"
title = "A backup"
source = "a test"
storage = "nvme"
esx = { release = "6.0", format = "vmfssparse" }
disk = [{ name = "disk", size_bytes = 16_777_216 }]
worker = [{ name = "guest", block_bytes = 4096, read_percent = 50, random_percent = 100, align_bytes = 4096, outstanding = 4 }]
step = [
  { do = "prepare", phase = "prepare" },
  { do = "run", phase = "baseline", seconds = 0.5 },
  { do = "take", phase = "snapshot", name = "nightly" },
  { do = "backup", phase = "snapshot", name = "nightly" },
  { do = "commit", phase = "commit", name = "nightly" },
  { do = "drain", phase = "drain" },
]
"#;

#[test]
fn a_backup_reads_the_frozen_disk_of_each_stack() {
    let datastore = Datastore::new();
    let experiment = datastore.beside("backup.toml");
    std::fs::write(&experiment, BACKUP).unwrap();
    for subject in ["native", "redo", "redo:mirror", "qemu"] {
        let mut command = lab_run(&datastore);
        command.arg(&experiment).args(["--minutes", "0.5", "--json", "--subject", subject]);
        let record = record(&command.output().unwrap());
        assert_eq!(record["end"], "complete", "{subject}");
        let marks = record["marks"].to_string();
        assert!(marks.contains("16777216 bytes of nightly copied out"), "{subject}: {marks}");
        assert!(marks.contains("commit ended"), "{subject}: {marks}");
    }
    assert_nothing_is_left(&datastore);
}

#[test]
fn a_backup_reads_the_frozen_disk_of_a_users_stack() {
    let datastore = Datastore::new();
    let (experiment, disk) = (datastore.beside("backup.toml"), datastore.beside("theirs.img"));
    std::fs::write(&experiment, BACKUP).unwrap();
    std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let frozen = datastore.beside("frozen-$UNSTUN_SNAPSHOT");
    let run = |more: &[&str]| {
        let mut command = lab_run(&datastore);
        command.arg(&experiment).args(["--minutes", "0.5", "--json", "--target"]).arg(&disk).arg("--take");
        command.arg(format!("cp {} {}", disk.display(), frozen.display()));
        command.arg("--commit").arg(format!("rm {}", frozen.display()));
        command.args(more).output().unwrap()
    };
    let frozen_run = record(&run(&["--frozen", frozen.to_str().unwrap()]));
    assert_eq!(frozen_run["end"], "complete");
    let marks = frozen_run["marks"].to_string();
    assert!(marks.contains("16777216 bytes of nightly copied out"), "{marks}");
    let nowhere = record(&run(&[]));
    assert!(nowhere["end"]["failed"].as_str().is_some_and(|why| why.contains("--frozen")), "{nowhere}");
    let output = run(&["--frozen", "a", "--frozen", "b"]);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success() && said.contains("one belongs to each"), "{said}");
    assert_nothing_is_left(&datastore);
}

#[test]
fn a_comparison_may_have_an_experiments_protocol() {
    let datastore = Datastore::new();
    let output = Command::new(env!("CARGO_BIN_EXE_unstun"))
        .args(["lab", "compare", "native", "qemu", "--rounds", "1", "--experiment", "zandboer-ssd-mirror"])
        .args(["--minutes", "0.1", "--json", "--real"])
        .arg(datastore.beside("measured"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summaries = record(&output);
    for summary in summaries.as_array().unwrap() {
        let is_of_the_experiment =
            |cell: &Value| cell["phase"] == "prepare-snapshot" && cell["quantity"] == "seconds";
        assert!(summary["cells"].as_array().unwrap().iter().any(is_of_the_experiment), "{summary}");
    }
    assert_nothing_is_left(&datastore);
}

#[test]
fn a_folder_is_measured_before_a_prediction() {
    let datastore = Datastore::new();
    let folder = datastore.beside("measured");
    std::fs::create_dir(&folder).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_unstun"))
        .args(["lab", "predict", "--iops", "50", "--read", "70", "--keep", "5", "--seconds", "2", "--json"])
        // Other tests use the same storage meanwhile, so the model may be far off.
        .args(["--accept-off", "1000"])
        .arg("--storage")
        .arg(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("4 KiB random reads, 1 under way") && said.contains("lanes"), "{said}");
    assert!(said.contains("The model is off by at most x") && said.contains("held out"), "{said}");
    let answers = record(&output);
    assert_eq!(answers.as_array().unwrap().len(), 9, "a line for each stack");
    let factor = |name: &str| answers[0]["band"][name].as_f64().unwrap();
    assert!(factor("slower_by") >= 1.0 && factor("faster_by") >= 1.0, "{answers}");
    assert_nothing_is_left(&datastore);
}
