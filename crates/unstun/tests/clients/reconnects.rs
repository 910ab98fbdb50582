//! A client with the reconnect delay of `attach`, and a daemon that is killed: QEMU continues with its acknowledged
//! data, or it is refused.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::daemon::Datastore;

/// qemu-io with the block options that `attach` prints for QEMU.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Attaches; `delay` is the number of seconds for which requests wait for a new connection.
    fn attach(datastore: &Datastore, delay: u32) -> Client {
        let export = datastore.json("attach web")["disks"][0]["export"].as_str().unwrap().to_owned();
        let socket = datastore.nbd_socket();
        let options = format!(
            "driver=nbd,server.type=unix,server.path={},export={export},reconnect-delay={delay}",
            socket.display()
        );
        let mut child = Command::new("qemu-io")
            .args(["-t", "writeback", "--image-opts", &options])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("qemu-io; `make setup` installs it");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Client { child, input, output }
    }

    /// Runs one command, and waits until qemu-io has printed `word`. qemu-io reads its input once for each time that
    /// some arrives.
    fn says(&mut self, command: &str, word: &str) {
        writeln!(self.input, "{command}").unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "{command}: expected {word:?}, qemu-io said {said:?}");
            said.push_str(&line);
            assert!(!line.contains("verification failed") && !line.contains("failed:"), "{command}: {said}");
            if line.contains(word) {
                return;
            }
        }
    }

    /// Runs the last commands, and returns the output of both streams to the end.
    fn end(mut self, commands: &str) -> String {
        writeln!(self.input, "{commands}\nquit").unwrap();
        drop(self.input);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut said).unwrap();
        let output = self.child.wait_with_output().unwrap();
        said + &String::from_utf8_lossy(&output.stderr)
    }
}

fn write_over_a_snapshot(datastore: &Datastore, delay: u32) -> Client {
    let mut client = Client::attach(datastore, delay);
    client.says("write -f -P 1 0 64k", "wrote");
    datastore.json("snapshot take web before");
    client.says("write -P 5 0 64k", "wrote");
    client.says("write -z 64k 64k", "wrote");
    client
}

fn a_client_that_reconnects_reads_what_it_was_answered(store: &str) {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --disk 16M --store {store}"));
    let mut client = write_over_a_snapshot(&datastore, 60);
    daemon.kill();
    let daemon = datastore.start();
    client.says("read -P 5 0 64k", "read");
    client.says("read -P 0 64k 64k", "read");
    client.says("write -P 6 128k 4k", "wrote");
    daemon.kill();
    let daemon = datastore.start();
    client.says("read -P 5 0 64k", "read");
    client.says("read -P 6 128k 4k", "read");
    client.end("flush");
    daemon.stop();
    let daemon = datastore.start();
    let said = Client::attach(&datastore, 60).end("read -P 5 0 64k\nread -P 6 128k 4k");
    assert!(said.contains("read") && !said.contains("fail"), "{said}");
    daemon.stop();
}

fn a_client_whose_answers_are_lost_is_refused(store: &str) {
    let datastore = Datastore::new().with_own_memory();
    let daemon = datastore.start();
    datastore.json(&format!("vm create web --disk 16M --store {store}"));
    let client = write_over_a_snapshot(&datastore, 2);
    daemon.kill();
    std::fs::remove_dir_all(datastore.memory()).unwrap();
    let daemon = datastore.start();
    let said = client.end("flush\nread 0 512");
    assert!(said.contains("power-cycled") || said.contains("failed"), "{said}");
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    assert!(
        log.contains("is refused web/disk0.g") && log.contains("VM web: acknowledged writes may be missing"),
        "{log}"
    );
    let events = datastore.json("events web");
    assert!(events.to_string().contains(" was refused: web/disk0: "), "{events}");
    let lost = events.as_array().unwrap().iter().filter(|e| e["operation"] == "writes_lost").count();
    assert_eq!(lost, 1, "{events}");
    datastore.json("vm open web");
    daemon.stop();
}

#[test]
fn to_deltas() {
    a_client_that_reconnects_reads_what_it_was_answered("redo");
}

#[test]
fn to_a_native_store() {
    a_client_that_reconnects_reads_what_it_was_answered("native");
}

#[test]
fn not_to_deltas_of_which_writes_are_lost() {
    a_client_whose_answers_are_lost_is_refused("redo");
}

#[test]
fn not_to_a_native_store_of_which_writes_are_lost() {
    a_client_whose_answers_are_lost_is_refused("native");
}
