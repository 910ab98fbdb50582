//! `unstun backup verify VM --boot COMMAND`: a VM over the backup, a command that decides, and the VM is removed.

use std::process::Stdio;
use std::time::Instant;

use api::BackupBooted;
use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use api::output::Output;
use api::units::format_us;
use tokio::process::Command;

use super::find;
use crate::cli::RepoArgs;
use crate::command::restore;
use crate::repository::Place;

pub(super) async fn run(
    which: &[String],
    repo: &RepoArgs,
    command: &str,
    client: &Client,
    output: Output,
) -> Result<()> {
    let [which] = which else {
        let found = which.len();
        return Err(Error::invalid(format!("--boot with {found} backups: expected one, such as web")));
    };
    let place = Place::resolve(repo)?;
    let repository = place.open().await?;
    let number = find(repository.state(), which)?;
    let backup = repository.state().backup(number)?;
    // One of its name may exist, and two verifications may run.
    let name = format!("verify-{number}-{}", std::process::id());
    let name: VmName = name.parse().map_err(Error::failed)?;
    let began = Instant::now();
    restore::create(&place, (number, backup), &name, false, client).await?;
    let booted = boot(command, &name, client).await;
    let removed = client.vm_remove(&name, true, true, false).await;
    if let Err(e) = removed {
        output.note(&format!(
            "note: VM {name} stays: {e}; `unstun vm remove {name} --delete-disks --purge` removes it"
        ));
    }
    booted.map_err(|e| {
        Error::new(e.kind, format!("backup {number} of VM {}: {}", backup.origin.vm, e.message))
    })?;
    let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let booted = BackupBooted { backup: number, vm: backup.origin.vm.clone(), took_us };
    output.result(&booted, |booted| {
        format!("backup {} of VM {} boots: {}", booted.backup, booted.vm, format_us(booted.took_us))
    })
}

/// Runs the command with the VM's disks in its environment. Ctrl-C ends the command, too.
async fn boot(command: &str, vm: &VmName, client: &Client) -> Result<()> {
    let shown = client.vm_show(vm).await?;
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("UNSTUN_VM", vm.as_str()).stdin(Stdio::null());
    // What the command prints is for people; the result is on standard output.
    shell.stdout(std::io::stderr()).kill_on_drop(true);
    for disk in &shown.disks {
        shell.env(format!("UNSTUN_DISK{}", disk.number), &disk.nbd_uri);
    }
    let failed = |cause: String| Error::new(ErrorKind::Damaged, format!("it does not boot: {cause}"));
    let mut running = shell.spawn().map_err(|e| Error::failed(format!("starting sh: {e}")))?;
    tokio::select! {
        ended = running.wait() => match ended.map_err(|e| Error::failed(format!("sh: {e}")))? {
            status if status.success() => Ok(()),
            status => Err(failed(format!("`{command}` has ended with {status}"))),
        },
        _ = tokio::signal::ctrl_c() => {
            // It may have ended.
            let _ = running.kill().await;
            Err(Error::new(ErrorKind::Cancelled, "the verification was ended"))
        }
    }
}
