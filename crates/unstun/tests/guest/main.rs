//! A Linux guest under QEMU (emulated, TCG) on our disks: the effects of a take and a commit on it, and its data after
//! a hard reset, a revert, and a crash of both sides.
//!
//! This program is both sides. On the host it runs the scenarios below. Started as process 1 of the guest, from an
//! initramfs made of itself and of Debian's kernel modules, it is the guest's init and executes the host's requests. It
//! supports x86-64 only, like the kernel package that `scripts/setup.sh` unpacks.

// The clients' module: a daemon as a process, on a datastore under the build's folder.
#[path = "../clients/daemon.rs"]
#[allow(dead_code, reason = "the clients use the rest")]
mod daemon;
mod echo;
mod felt;
mod fenced;
mod image;
mod initramfs;
mod inside;
mod lun;
mod machine;
mod memory;
mod native;
#[path = "../clients/programs.rs"]
mod programs;
mod quiesce;
#[path = "../clients/random.rs"]
mod random;
mod reset;
mod restored;
mod reverted;
mod vhost;
mod wire;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

const SCENARIOS: [(&str, fn()); 11] = [
    ("twelve_disks_feel_no_take_and_no_commit", felt::twelve_disks_feel_no_take_and_no_commit),
    ("file_systems_survive_a_reset_amid_a_commit", reset::file_systems_survive_a_reset_amid_a_commit),
    ("a_native_vm_survives_moves_and_a_crash_of_all", native::a_native_vm_survives_moves_and_a_crash_of_all),
    (
        "a_live_guest_never_writes_what_it_was_reverted_to",
        fenced::a_live_guest_never_writes_what_it_was_reverted_to,
    ),
    ("file_systems_are_frozen_for_a_snapshot", quiesce::file_systems_are_frozen_for_a_snapshot),
    ("a_guest_runs_while_its_memory_is_saved", memory::a_guest_runs_while_its_memory_is_saved),
    ("programs_go_on_where_they_were", memory::programs_go_on_where_they_were),
    ("a_guest_over_vhost_user_outlives_its_daemon", vhost::a_guest_over_vhost_user_outlives_its_daemon),
    ("a_guest_runs_from_a_backup_on_another_host", restored::a_guest_runs_from_a_backup_on_another_host),
    (
        "a_device_refuses_the_writes_of_a_host_that_lost_it",
        lun::a_device_refuses_the_writes_of_a_host_that_lost_it,
    ),
    ("revert_brings_back_exactly_the_old_files", reverted::revert_brings_back_exactly_the_old_files),
];

/// Runs without the test harness, because the guest starts this program too; its output has the harness's lines.
/// Arguments that are no options select scenarios by a part of their names.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.as_slice() {
        [init, what] if init == initramfs::INIT && ["freeze", "thaw"].contains(&what.as_str()) => {
            return inside::hook(what);
        }
        [init, ..] if init == initramfs::INIT => inside::main(),
        _ => {}
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, 0);
    for (name, scenario) in SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(word)) {
            continue;
        }
        let began = Instant::now();
        let result = catch_unwind(scenario);
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        *(if result.is_ok() { &mut passed } else { &mut failed }) += 1;
        println!("test {name} ... {word} ({} s)", began.elapsed().as_secs());
    }
    println!("test result: {}. {passed} passed; {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    ExitCode::from(u8::from(failed != 0))
}
