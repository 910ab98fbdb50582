//! The command that starts a guest where it was at a snapshot with its memory.

use std::env;
use std::path::PathBuf;

use api::client::Client;
use api::error::{Error, Result};
use api::listen::NbdListen;
use api::name::SnapshotRef;
use api::{DiskMode, Vm};

use super::quote::quoted;
use crate::command::memory;
use crate::guest::{SavedDisk, header_of};

const INCOMING: &str = "-incoming";
/// In front of the number of the content's generation in the name of an export or a socket.
const GENERATION: &str = ".g";

const PAUSED: &str = "the guest stands still once its memory is loaded, as it did while that was saved: enter `cont` in QEMU's \
                      monitor";

/// A command that starts a guest, and what its user has to know.
pub(super) struct Resume {
    pub words: Vec<String>,
    pub notes: Vec<String>,
    /// Whether the guest stands still once it is loaded.
    pub paused: bool,
}

/// Returns the command. Fails with `Refused` if a disk differs from the snapshot.
pub(super) async fn command(vm: &Vm, snapshot: &SnapshotRef, client: &Client) -> Result<Resume> {
    let memory = memory::find(&vm.name, snapshot, client).await?;
    memory::refuse_changed(vm, &memory, client).await?;
    let program = env::current_exe().map_or("unstun".to_owned(), |path| path.to_string_lossy().into_owned());
    let datastore = client.datastore().to_string_lossy().into_owned();
    // It is checked again at each start: a guest that has run has changed the disks.
    let last = ["snapshot", "memory", vm.name.as_str(), &memory.id, "--stream", "--unchanged"];
    let stream = [program.as_str(), "--datastore", &datastore].into_iter().chain(last);
    let stream = stream.map(quoted).collect::<Vec<_>>().join(" ");
    // The command line may have secrets: only who may read the file gets it, and not who may use the API.
    let header = header_of(&memory.file).map_err(Error::failed)?;
    let paused = header.paused;
    let mut words = without_incoming(header.command_line);
    let mut notes: Vec<String> = paused.then(|| PAUSED.to_owned()).into_iter().collect();
    for disk in &vm.disks {
        let was = header.disks.iter().find(|saved| saved.number == disk.number).cloned();
        let (was, is) = (names(&was.unwrap_or_else(|| disk.into()))?, names(&disk.into())?);
        for (was, is) in was.pairs(&is) {
            words = words.iter().map(|word| with_present(word, was, is)).collect();
        }
        notes.extend(if words.is_empty() { None } else { is.missing(&words, disk.number) });
        if disk.mode != DiskMode::Persistent {
            notes.push(format!(
                "disk{} is no part of snapshots: it is as it is now, and the guest's memory has it as it was",
                disk.number
            ));
        }
    }
    words.extend([INCOMING.to_owned(), format!("exec:{stream}")]);
    Ok(Resume { words, notes, paused })
}

/// Names by which a command line reaches a disk.
struct Names {
    export: String,
    nbd_socket: Option<String>,
    vhost_user_socket: Option<String>,
}

fn names(disk: &SavedDisk) -> Result<Names> {
    let (listen, export) = NbdListen::parse_uri(&disk.nbd_uri).map_err(Error::failed)?;
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let nbd_socket = if let NbdListen::Unix(path) = &listen { Some(text(path)) } else { None };
    Ok(Names { export, nbd_socket, vhost_user_socket: disk.vhost_user_socket.as_ref().map(text) })
}

impl Names {
    fn pairs<'a>(&'a self, present: &'a Names) -> Vec<(&'a str, &'a str)> {
        let mut pairs = vec![(self.export.as_str(), present.export.as_str())];
        let sockets =
            [(&self.vhost_user_socket, &present.vhost_user_socket), (&self.nbd_socket, &present.nbd_socket)];
        for (was, is) in sockets {
            pairs.extend(was.as_deref().zip(is.as_deref()));
        }
        pairs
    }

    /// Returns what a command line lacks that reaches the disk.
    fn missing(&self, words: &[String], number: u32) -> Option<String> {
        let has = |name: &str| words.iter().any(|word| word.contains(name));
        if self.vhost_user_socket.as_deref().is_some_and(has) {
            return None;
        }
        if !has(&self.export) {
            return Some(format!(
                "nothing in the command has the name of disk{number}, {}: what stands there must be this disk",
                self.export
            ));
        }
        let socket = self.nbd_socket.as_deref().filter(|socket| !has(socket))?;
        Some(format!("the command does not have {socket}, where disk{number} is served now"))
    }
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

/// Returns a word with the present name of a disk in the place of `was`, in any generation of its content, or in none. A
/// longer name, and a path of another file, stay.
fn with_present(word: &str, was: &str, present: &str) -> String {
    let (stem, tail) = match was.rsplit_once(GENERATION) {
        Some((stem, generation)) => (stem, without_digits(generation)),
        None => (was, ""),
    };
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(stem) {
        let (before, found) = rest.split_at(at);
        text.push_str(before);
        let after = &found[stem.len()..];
        let behind = after.strip_prefix(GENERATION).map_or(after, without_digits).strip_prefix(tail);
        let ends = behind.filter(|behind| behind.chars().next().is_none_or(|c| ",\"?&;' ".contains(c)));
        match ends.filter(|_| begins_name(&text)) {
            Some(behind) => {
                text.push_str(present);
                rest = behind;
            }
            None => {
                text.push_str(stem);
                rest = after;
            }
        }
    }
    text + rest
}

fn without_digits(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_ascii_digit())
}

/// Returns whether a name begins behind `before`: as a value, or as the last part of an NBD URI.
fn begins_name(before: &str) -> bool {
    match before.chars().next_back() {
        None => true,
        Some('/') => before.rsplit(['=', ',', '"']).next().is_some_and(|uri| uri.starts_with("nbd")),
        Some(c) => "=\",:".contains(c),
    }
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
    fn names_are_those_of_the_present_content_and_other_files_stay() {
        for (word, expected) in [
            (
                r#"{"export":"web/disk1.g3","x":"web/disk1"}"#,
                r#"{"export":"web/disk1.g17","x":"web/disk1.g17"}"#,
            ),
            ("driver=nbd,export=web/disk1.g3,discard=unmap", "driver=nbd,export=web/disk1.g17,discard=unmap"),
            ("file=nbd+unix:///web/disk1?socket=/run/s", "file=nbd+unix:///web/disk1.g17?socket=/run/s"),
            ("nbd://127.0.0.1:10809/web/disk1.g3", "nbd://127.0.0.1:10809/web/disk1.g17"),
        ] {
            assert_eq!(with_present(word, "web/disk1.g2", "web/disk1.g17"), expected);
            let renamed = expected.replace("web/disk1.g17", "shop/disk1.g4");
            assert_eq!(with_present(word, "web/disk1.g3", "shop/disk1.g4"), renamed);
        }
        for other in [
            "export=web/disk12.g3",
            "export=web/disk1.gx",
            "export=web/disk1@night",
            "export=intraweb/disk1",
            "file=/srv/web/disk1",
            "file=/srv/web/disk1.img",
            "export=nbd,file=/srv/web/disk1",
        ] {
            assert_eq!(with_present(other, "web/disk1.g3", "web/disk1.g17"), other);
        }
        let socket = "socket,path=/run/v/web.disk0.g2.sock,x";
        let moved = with_present(socket, "/run/v/web.disk0.g2.sock", "/srv/v/shop.disk0.g9.sock");
        assert_eq!(moved, "socket,path=/srv/v/shop.disk0.g9.sock,x");
        let uri = "nbd+unix:///web/disk0?socket=/run/nbd.sock";
        assert_eq!(
            with_present(uri, "/run/nbd.sock", "/srv/n.sock"),
            uri.replace("/run/nbd.sock", "/srv/n.sock")
        );
        assert_eq!(with_present("/run/nbd.sock2", "/run/nbd.sock", "/srv/n.sock"), "/run/nbd.sock2");
    }

    #[test]
    fn words_are_those_of_a_shell() {
        assert_eq!(quoted("exec:it's here"), "'exec:it'\\''s here'");
        assert_eq!(
            (quoted("-m").as_str(), quoted("").as_str(), quoted("a$b").as_str()),
            ("-m", "''", "'a$b'")
        );
        assert_eq!(quoted("\u{1b}[2J'"), r"$'\u001b[2J\''");
        assert!(describe(&["-incoming".to_owned(), "exec:x".to_owned()]).starts_with("# behind"));
    }
}
