//! A guest agent that the tests play: its socket as QEMU's, with one client at a time, and answers as a test wants them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

/// What the agent does with a command.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Return(u64),
    Error(&'static str),
    /// None, and no more commands of this connection.
    Silence,
    HangUp,
}

/// Starts an agent, and returns the commands that it gets, without those for synchronisation.
pub(crate) fn start(socket: &Path, answer: impl FnMut(&str) -> Answer + Send + 'static) -> Receiver<String> {
    let listener = UnixListener::bind(socket).expect("a new socket");
    let (tell, commands) = channel();
    let mut agent = Agent { answer, tell };
    // It ends with the process.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // A client that has gone away is no fault of the agent's.
            let _ = agent.serve(client.expect("a client"));
        }
    });
    commands
}

struct Agent<F> {
    answer: F,
    tell: Sender<String>,
}

impl<F: FnMut(&str) -> Answer> Agent<F> {
    fn serve(&mut self, mut client: UnixStream) -> std::io::Result<()> {
        let mut requests = BufReader::new(client.try_clone()?);
        let mut line = Vec::new();
        while requests.read_until(b'\n', &mut line)? > 0 {
            let begin = line.iter().rposition(|byte| *byte == 0xFF).map_or(0, |at| at + 1);
            let request: Value = serde_json::from_slice(&line[begin..]).expect("a request is JSON");
            line.clear();
            let command = request["execute"].as_str().expect("a command");
            let is_sync = command == "guest-sync-delimited";
            let answer = (self.answer)(command);
            if !is_sync {
                // The test may have seen enough.
                let _ = self.tell.send(command.to_owned());
            }
            let said = match answer {
                Answer::Return(_) if is_sync => json!({"return": request["arguments"]["id"]}),
                Answer::Return(number) => json!({"return": number}),
                Answer::Error(cause) => json!({"error": {"class": "GenericError", "desc": cause}}),
                Answer::Silence => {
                    std::io::copy(&mut requests, &mut std::io::sink())?;
                    return Ok(());
                }
                Answer::HangUp => return Ok(()),
            };
            // An answer to an earlier client, cut off, as QEMU may still have it.
            client.write_all(if is_sync { b"{\"return\": 1}\n{\"ret\xFF" } else { b"" })?;
            client.write_all(format!("{said}\n").as_bytes())?;
        }
        Ok(())
    }
}
