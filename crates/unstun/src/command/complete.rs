//! `unstun complete`: the names that fit a word of a command line, for the completions of shells.
//!
//! It prints nothing where no daemon answers: a shell has no place for an error.

use std::path::PathBuf;
use std::time::Duration;

use api::VmSummary;
use api::client::{Client, runtime};
use api::error::Result;
use api::name::VmName;
use api::output::Output;
use clap::{Arg, Command, CommandFactory};

use crate::cli::Cli;

/// A user waits for the shell meanwhile.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Maximum number of VMs whose disks are listed; each is a request.
const VMS_SHOWN_MAX: usize = 20;

/// What a word names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Vm,
    /// A VM, and after `@` its snapshot.
    VmOrState,
    Disk,
    Snapshot(String),
    Policy,
    Datastore,
}

/// The last word of a command line, as far as it is known what it names.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    named: Named,
    datastore: Option<PathBuf>,
}

pub(super) fn run(words: &[String], output: Output) -> Result<()> {
    let word = words.last().map_or("", String::as_str);
    let names = wanted(words).and_then(|wanted| names(&wanted, word)).unwrap_or_default();
    let fitting: Vec<_> = names.into_iter().filter(|name| name.starts_with(word)).collect();
    if fitting.is_empty() { Ok(()) } else { output.result(&fitting, |fitting| fitting.join("\n")) }
}

/// Returns what the last of the words names.
fn wanted(words: &[String]) -> Option<Wanted> {
    let (last, before) = words.split_last()?;
    let mut root = Cli::command();
    root.build();
    let (mut command, mut path) = (&root, Vec::new());
    let (mut positionals, mut datastore) = (Vec::new(), None);
    let mut option: Option<&Arg> = None;
    for word in before {
        // Bash divides a long option and its value, with = between them, into three words.
        if option.is_some() && word == "=" {
            continue;
        }
        if let Some(value) = word.strip_prefix("--datastore=") {
            datastore = Some(PathBuf::from(value));
        } else if let Some(option) = option.take() {
            if option.get_id() == "datastore" {
                datastore = Some(PathBuf::from(word));
            }
        } else if word.starts_with('-') {
            option = option_with_value(command, word);
        } else if let Some(below) = command.find_subcommand(word).filter(|_| positionals.is_empty()) {
            command = below;
            path.push(below.get_name());
        } else {
            positionals.push(word.as_str());
        }
    }
    let arg = match option {
        Some(option) => option,
        None if last.starts_with('-') => return None,
        None => command.get_positionals().nth(positionals.len())?,
    };
    let named = named(&path, arg.get_id().as_str(), positionals.first().copied())?;
    Some(Wanted { named, datastore })
}

/// Returns the option, if the next word is its value.
fn option_with_value<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let is_it = |arg: &&Arg| {
        arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long))
            || arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(&short.to_string()))
    };
    let takes_value = |arg: &&Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    command.get_arguments().find(is_it).filter(takes_value)
}

fn named(path: &[&str], arg: &str, first: Option<&str>) -> Option<Named> {
    let snapshot_of_first = || Some(Named::Snapshot(first?.to_owned()));
    match (path, arg) {
        // New names, and names of what is not there any more.
        (["vm", "create"] | ["bin", ..], "vm") | (["snapshot", "take" | "rename"], "name") => None,
        (["policy", "create"], "name") => None,
        (["snapshot", "commit" | "revert" | "discard"], "vm") | (["vm", "clone"], "state") => {
            Some(Named::VmOrState)
        }
        (["attach"], "resume") => snapshot_of_first(),
        (["snapshot", _], "name" | "snapshot" | "from" | "to") => snapshot_of_first(),
        (["policy", _], "name") => Some(Named::Policy),
        (["datastore", "remove"], "name") | (["vm", "move"], "to") | (_, "datastore") => {
            Some(Named::Datastore)
        }
        (_, "vm") | (["vm", "move" | "defragment"], "what") => Some(Named::Vm),
        (["vm", "disk", _], "disk") => Some(Named::Disk),
        _ => None,
    }
}

fn names(wanted: &Wanted, word: &str) -> Option<Vec<String>> {
    let client = Client::for_command(wanted.datastore.as_deref()).ok()?;
    let answer = async { tokio::time::timeout(ANSWER_MAX, ask(&client, &wanted.named, word)).await };
    runtime().ok()?.block_on(answer).ok()?.ok()
}

async fn ask(client: &Client, named: &Named, word: &str) -> Result<Vec<String>> {
    Ok(match named {
        Named::VmOrState if word.contains('@') => {
            let (vm, _) = word.split_once('@').unwrap_or_default();
            let of = |name| format!("{vm}@{name}");
            snapshots(client, vm).await?.into_iter().map(of).collect()
        }
        Named::Vm | Named::VmOrState => {
            let (within, vms) = (client.within().await?, client.vm_list().await?);
            let fits = |vm: &VmSummary| within.as_ref().is_none_or(|name| vm.datastore == *name);
            vms.into_iter().filter(fits).map(|vm| vm.name.to_string()).collect()
        }
        Named::Disk => {
            let vm = word.split('/').next().unwrap_or_default();
            let mut vms = client.vm_list().await?;
            vms.retain(|known| known.name.as_str().starts_with(vm));
            let mut disks = Vec::new();
            for vm in vms.iter().take(VMS_SHOWN_MAX) {
                let shown = client.vm_show(&vm.name).await?;
                disks.extend(shown.disks.iter().map(|disk| format!("{}/disk{}", vm.name, disk.number)));
            }
            disks
        }
        Named::Snapshot(vm) => snapshots(client, vm).await?,
        Named::Policy => {
            client.policy_list().await?.into_iter().map(|one| one.policy.name.to_string()).collect()
        }
        Named::Datastore => {
            client.datastore_list().await?.into_iter().map(|one| one.name.to_string()).collect()
        }
    })
}

async fn snapshots(client: &Client, vm: &str) -> Result<Vec<String>> {
    let vm: VmName = vm.parse().map_err(api::error::Error::invalid)?;
    Ok(client.snapshot_tree(&vm).await?.snapshots.into_iter().map(|one| one.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Named> {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        wanted(&words).map(|wanted| wanted.named)
    }

    #[test]
    fn the_word_under_the_cursor_is_known_by_its_place() {
        let snapshot = || Some(Named::Snapshot("web".to_owned()));
        for (line, expected) in [
            ("", None),
            ("vm show ", Some(Named::Vm)),
            ("vm show web ", None),
            ("vm create ", None),
            ("vm create web --from ", None),
            ("vm set --note text ", Some(Named::Vm)),
            ("vm disk grow ", Some(Named::Disk)),
            ("vm clone web@", Some(Named::VmOrState)),
            ("vm clone web@a ", None),
            ("vm move web --to ", Some(Named::Datastore)),
            ("snapshot commit ", Some(Named::VmOrState)),
            ("snapshot commit web b", snapshot()),
            ("snapshot commit --yes web ", snapshot()),
            ("snapshot diff web a ", snapshot()),
            ("snapshot take web ", None),
            ("snapshot rename web ", snapshot()),
            ("snapshot rename web a ", None),
            ("snapshot commit --", None),
            ("attach web --resume ", snapshot()),
            ("attach web --resume = ", snapshot()),
            ("policy show ", Some(Named::Policy)),
            ("policy create ", None),
            ("events --follow ", Some(Named::Vm)),
            ("job pause ", None),
            ("--datastore ", Some(Named::Datastore)),
        ] {
            assert_eq!(of(line), expected, "{line:?}");
        }
        for line in [
            "--datastore /srv/d vm show ",
            "--datastore = /srv/d vm show ",
            "--datastore=/srv/d vm show ",
            "vm show --datastore /srv/d ",
        ] {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(wanted(&words).unwrap().datastore, Some("/srv/d".into()), "{line}");
        }
    }
}
