//! The commands that throw data away: revert, discard, reset. Each says what is lost, and asks.

use crate::api::{Discard, Loss, Revert, VmClient};
use crate::cli::{DiscardArgs, LossArgs, ResetArgs, RevertArgs};
use crate::client::Client;
use crate::command::consent;
use crate::error::{Error, Result};
use crate::name::VmName;
use crate::output::{Output, fields};
use crate::units::format_bytes;

pub async fn revert(args: &RevertArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, snapshot) = args.which.parse()?;
    let request = Revert { snapshot, take_first: args.take_first.clone(), disconnect: args.loss.disconnect };
    let preview = client.revert_preview(&vm, &request).await?;
    if !agreed(&preview, &args.loss, output)? {
        return Ok(());
    }
    output.result(&client.snapshot_revert(&vm, &request).await?, done)
}

pub async fn discard(args: &DiscardArgs, client: &Client, output: Output) -> Result<()> {
    let (vm, snapshot) = args.which.parse_both()?;
    let request = Discard { snapshot, disconnect: args.loss.disconnect };
    let preview = client.discard_preview(&vm, &request).await?;
    if !agreed(&preview, &args.loss, output)? {
        return Ok(());
    }
    output.result(&client.snapshot_discard(&vm, &request).await?, done)
}

pub async fn reset(args: &ResetArgs, client: &Client, output: Output) -> Result<()> {
    let preview = client.reset_preview(&args.vm).await?;
    if !agreed(&preview, &args.loss, output)? {
        return Ok(());
    }
    output.result(&client.vm_reset(&args.vm, args.loss.disconnect).await?, done)
}

/// False after a dry run. A client in the way is refused here already, so that nobody is asked in vain; the
/// daemon looks again.
fn agreed(preview: &Loss, args: &LossArgs, output: Output) -> Result<bool> {
    if args.dry_run {
        output.result(preview, describe)?;
        return Ok(false);
    }
    output.note(&describe(preview));
    if preview.reverts && !preview.clients.is_empty() && !args.disconnect {
        return Err(Error::refused(format!(
            "VM {}: {}: a disk that changes under its guest ruins the guest's file systems; power the guest off, or \
             end the sessions with --disconnect",
            preview.vm,
            connected(&preview.clients)
        )));
    }
    if !args.yes {
        let verb = preview.operation.as_str();
        consent(&format!("{}{}?", verb[..1].to_uppercase(), &verb[1..]), &format!("{verb}s"))?;
    }
    Ok(true)
}

fn describe(loss: &Loss) -> String {
    let mut lines = vec![(loss.operation.as_str(), place(loss))];
    if let Some(taken) = &loss.taken {
        lines.push(("taken first", taken.clone()));
    }
    if !loss.snapshots.is_empty() {
        lines.push(("names that go", loss.snapshots.join(", ")));
    }
    let bytes = format_bytes(loss.bytes_lost);
    lines.push((
        "lost",
        match loss.layers.len() {
            // Native disks have none.
            0 => bytes,
            1 => format!("{bytes} in 1 layer"),
            layers => format!("{bytes} in {layers} layers"),
        },
    ));
    if !loss.clients.is_empty() {
        lines.push(("clients", connected(&loss.clients)));
    }
    format!("{}{}", fields(&lines), loss.warning)
}

fn place(loss: &Loss) -> String {
    match &loss.target {
        Some(target) => format!("{} to {target}", loss.vm),
        None => loss.vm.to_string(),
    }
}

/// `pid 4711 (qemu-system-x86) writes to disk0, 127.0.0.1:5000 reads disk1`.
pub fn connected(clients: &[VmClient]) -> String {
    let all: Vec<String> = clients.iter().map(ToString::to_string).collect();
    let same: Vec<String> = all
        .chunk_by(|a, b| a == b)
        .map(|same| match same.len() {
            1 => same[0].clone(),
            connections => format!("{} ({connections} connections)", same[0]),
        })
        .collect();
    same.join(", ")
}

fn done(loss: &Loss) -> String {
    let mut text = match &loss.target {
        Some(target) if loss.reverts => format!("{} runs on from {target}", loss.vm),
        _ => format!("{}: {} done", loss.vm, loss.operation.as_str()),
    };
    text.push_str(&format!("; {} given up", format_bytes(loss.bytes_lost)));
    if let Some(taken) = &loss.taken {
        text.push_str(&format!("; what was is kept as {taken}"));
    }
    if !loss.clients.is_empty() {
        text.push_str(&format!("; disconnected: {}", connected(&loss.clients)));
    }
    if loss.reverts {
        text.push_str(&next_step(&loss.vm));
    }
    text
}

/// The disks have other content now: who was connected may not come back with what it has cached.
fn next_step(vm: &VmName) -> String {
    format!(
        "\nthe export names of before are refused from now on; power the guest off, and start it with the names that \
         `unstun attach {vm}` prints\n(for plain names, {vm}/diskN: `unstun vm open {vm}`, when no client of before \
         runs any more)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ClientAccess, Operation};

    fn loss(target: Option<&str>, taken: Option<&str>, snapshots: &[&str]) -> Loss {
        let mut loss = Loss {
            vm: "web".parse().unwrap(),
            operation: Operation::Revert,
            target: target.map(str::to_owned),
            taken: taken.map(str::to_owned),
            snapshots: snapshots.iter().map(|&name| name.to_owned()).collect(),
            layers: vec!["/ds/web/web-000002.vmdk".into()],
            bytes_lost: 3 << 20,
            reverts: target.is_some(),
            clients: vec![VmClient {
                disk: Some(0),
                snapshot: None,
                client: "unix".to_owned(),
                access: ClientAccess::Writes,
            }],
            warning: String::new(),
        };
        loss.warning = loss.sentence();
        loss
    }

    fn args(disconnect: bool) -> LossArgs {
        LossArgs { disconnect, yes: true, dry_run: false }
    }

    #[test]
    fn the_preview_says_what_is_lost() {
        let text = describe(&loss(Some("a"), None, &["b", "c"]));
        for part in ["web to a", "names that go  b, c", "3 MiB in 1 layer", "unix writes to disk0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.ends_with("is lost; there is no way back to b, c"), "{text}");
        assert!(describe(&loss(Some("a"), Some("now"), &[])).ends_with("the present is kept as now"));
    }

    #[test]
    fn a_client_in_the_way_is_named_before_anything_is_asked() {
        let error = agreed(&loss(Some("a"), None, &[]), &args(false), Output::new(false)).unwrap_err();
        assert!(
            error.message.contains("unix writes to disk0") && error.message.contains("--disconnect"),
            "{error}"
        );
        assert!(agreed(&loss(Some("a"), None, &[]), &args(true), Output::new(false)).unwrap());
        assert!(agreed(&loss(None, None, &["a"]), &args(false), Output::new(false)).unwrap());
    }
}
