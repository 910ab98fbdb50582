//! The command that starts a guest where it was at a snapshot with its memory.

use std::env;

use api::client::Client;
use api::error::{Error, Result};
use api::listen::NbdListen;
use api::name::SnapshotRef;
use api::{Diff, DiskMode, Vm};

use crate::command::{difference, memory};

const INCOMING: &str = "-incoming";
/// In front of the number of the content's generation in the name of an export or a socket.
const GENERATION: &str = ".g";

/// Returns the words of the command. Fails with `Refused` if a disk differs from the snapshot: the guest would find other
/// data than it has in its memory.
pub(super) async fn command(vm: &Vm, snapshot: &SnapshotRef, client: &Client) -> Result<Vec<String>> {
    let memory = memory::find(&vm.name, snapshot, client).await?;
    let id: SnapshotRef = memory.id.parse().map_err(Error::failed)?;
    for disk in vm.disks.iter().filter(|disk| disk.mode == DiskMode::Persistent) {
        let request = Diff { disk: disk.number, from: id.clone(), to: None, start_bytes: 0 };
        if !difference::all(&vm.name, request, client).await?.ranges.is_empty() {
            return Err(Error::refused(format!(
                "{}/disk{} differs from snapshot {}, whose memory would not fit it; first run `unstun snapshot revert {} {}`",
                vm.name, disk.number, memory.snapshot, vm.name, memory.snapshot
            )));
        }
    }
    let program = env::current_exe().map_or("unstun".to_owned(), |path| path.to_string_lossy().into_owned());
    let datastore = client.datastore().to_string_lossy().into_owned();
    let words =
        [&program, "--datastore", &datastore, "snapshot", "memory", vm.name.as_str(), &memory.id, "--stream"];
    let stream = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let mut command = without_incoming(memory.command_line);
    for disk in &vm.disks {
        let (_, export) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
        let socket = disk.vhost_user_socket.as_ref().map(|path| path.to_string_lossy().into_owned());
        for name in [Some(export), socket].into_iter().flatten() {
            command = command.iter().map(|word| with_present(word, &name)).collect();
        }
    }
    command.extend([INCOMING.to_owned(), format!("exec:{stream}")]);
    Ok(command)
}

/// Removes the stream from which the guest was started before.
fn without_incoming(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word.trim_start_matches('-') == INCOMING.trim_start_matches('-') && word.starts_with('-') {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept
}

/// Returns a word with the present name of a disk in the place of the same in any generation of its content, or in none.
fn with_present(word: &str, present: &str) -> String {
    let (stem, tail) = present.rsplit_once(GENERATION).map_or((present, ""), |(stem, generation)| {
        (stem, generation.trim_start_matches(|c: char| c.is_ascii_digit()))
    });
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(stem) {
        let (before, found) = rest.split_at(at);
        let after = &found[stem.len()..];
        let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let behind = match after.strip_prefix(GENERATION).filter(|text| digits(text) > 0) {
            Some(generation) => generation[digits(generation)..].strip_prefix(tail),
            None => Some(after).filter(|text| digits(text) == 0).and_then(|text| text.strip_prefix(tail)),
        };
        text.push_str(before);
        match behind {
            Some(_) => text.push_str(present),
            None => text.push_str(stem),
        }
        rest = behind.unwrap_or(after);
    }
    text + rest
}

pub(super) fn describe(command: &[String]) -> String {
    let text = command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    match command.first().is_some_and(|word| word != INCOMING) {
        true => text,
        false => format!(
            "# behind the arguments with which QEMU ran at the snapshot, all of them; they were not to be seen then\n{text}"
        ),
    }
}

/// Returns a word of a shell's command.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@=:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_resumed_from_the_last_stream_alone() {
        let words = ["qemu", "-m", "512", "-incoming", "exec:old stream", "-nodefaults"];
        let kept = without_incoming(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(kept, ["qemu", "-m", "512", "-nodefaults"]);
    }

    #[test]
    fn names_are_those_of_the_present_content() {
        let word = r#"{"export":"web/disk1.g3","x":"web/disk1","y":"web/disk12.g3","z":"web/disk1.gx"}"#;
        let present =
            r#"{"export":"web/disk1.g17","x":"web/disk1.g17","y":"web/disk12.g3","z":"web/disk1.g17.gx"}"#;
        assert_eq!(with_present(word, "web/disk1.g17"), present);
        let socket = with_present("socket,path=/run/v/web.disk0.g2.sock,x", "/run/v/web.disk0.g9.sock");
        assert_eq!(socket, "socket,path=/run/v/web.disk0.g9.sock,x");
    }

    #[test]
    fn words_are_those_of_a_shell() {
        assert_eq!(quoted("exec:it's here"), "'exec:it'\\''s here'");
        assert_eq!(
            (quoted("-m").as_str(), quoted("").as_str(), quoted("a$b").as_str()),
            ("-m", "''", "'a$b'")
        );
        assert!(describe(&["-incoming".to_owned(), "exec:x".to_owned()]).starts_with("# behind"));
    }
}
