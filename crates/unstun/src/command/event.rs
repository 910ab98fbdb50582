//! `unstun events`.

use std::time::Duration;

use api::client::Client;
use api::error::Result;
use api::name::VmName;
use api::output::Output;
use api::units::{format_bytes, format_us};
use api::{Event, Operation};

use crate::cli::EventsArgs;

const FOLLOW_POLL: Duration = Duration::from_millis(500);

/// ID before that of the first event.
const BEGINNING: &str = "0.0.0";

pub(super) async fn run(args: &EventsArgs, client: &Client, output: Output) -> Result<()> {
    match (&args.vm, args.follow) {
        (Some(vm), false) => output.result(&client.events(vm, 0).await?, |events| describe_all(events)),
        (Some(vm), true) => follow(vm, client, output).await,
        (None, false) => {
            let (mut stream, mut events) = (client.event_stream(BEGINNING, false).await?, Vec::new());
            while let Some(streamed) = stream.next().await? {
                events.push(streamed.event);
            }
            output.result(&events, |events| describe_all(events))
        }
        (None, true) => follow_all(client, output).await,
    }
}

/// Prints the events of all VMs until Ctrl-C. A stream that the daemon has cut off continues where it was.
async fn follow_all(client: &Client, output: Output) -> Result<()> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut last = BEGINNING.to_owned();
    loop {
        let mut stream = client.event_stream(&last, true).await?;
        loop {
            let next = tokio::select! {
                _ = &mut interrupted => return Ok(()),
                next = stream.next() => next?,
            };
            let Some(streamed) = next else { break };
            if !print(&streamed.event, output)? {
                return Ok(());
            }
            last = streamed.id;
        }
    }
}

/// Prints the events of a VM until Ctrl-C.
async fn follow(vm: &VmName, client: &Client, output: Output) -> Result<()> {
    let mut events = client.events(vm, 0).await?;
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut last_id = 0;
    loop {
        for event in &events {
            if !print(event, output)? {
                return Ok(());
            }
            last_id = event.id;
        }
        tokio::select! {
            _ = &mut interrupted => return Ok(()),
            () = tokio::time::sleep(FOLLOW_POLL) => {}
        }
        events = client.events(vm, last_id).await?;
    }
}

/// Prints an event. Returns false when the reader has closed the output.
fn print(event: &Event, output: Output) -> Result<bool> {
    if output.is_json() { output.json_line(event) } else { output.stream(&describe(event)) }
}

fn describe_all(events: &[Event]) -> String {
    if events.is_empty() {
        return "no events".to_owned();
    }
    events.iter().map(|event| describe(event) + "\n").collect()
}

/// Returns a line for the VM, then an indented line for each disk.
fn describe(event: &Event) -> String {
    let mut text = format!("{:.3}  {}  {}", event.time, object(event), event.operation.as_str());
    // An event that touched no disk held back no guest I/O.
    if !event.disks.is_empty() || event.stun_us > 0 {
        text.push_str(&format!("  stun {}", format_us(event.stun_us)));
    }
    if let Some(message) = &event.message {
        text.push_str("  ");
        text.push_str(message);
    }
    for disk in &event.disks {
        let (stun, flush) = (format_us(disk.stun_us), format_us(disk.flush_us));
        text.push_str(&format!("\n    {}/disk{}  stun {stun}, flush {flush}", event.vm, disk.number));
        if disk.bytes_moved > 0 {
            text.push_str(&format!(", {} moved", format_bytes(disk.bytes_moved)));
        }
    }
    text
}

/// Returns the VM, or its snapshots or disks that the event is about.
fn object(event: &Event) -> String {
    let Some(subject) = &event.snapshot else { return event.vm.to_string() };
    match event.operation {
        Operation::Disks | Operation::Defragment => {
            let disks: Vec<String> = subject.split(", ").map(|disk| format!("{}/{disk}", event.vm)).collect();
            disks.join(", ")
        }
        // These name the VM too.
        Operation::SpaceExhausted | Operation::SpaceReturned => subject.clone(),
        _ => format!("{}@{subject}", event.vm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::EventDisk;

    #[test]
    fn a_take_reads_as_one_line_and_its_disks() {
        let event = Event {
            id: 1,
            time: "2026-11-20T12:00:00.123456Z".parse().unwrap(),
            vm: "web".parse().unwrap(),
            operation: Operation::Take,
            snapshot: Some("a".into()),
            stun_us: 210,
            frozen_us: 0,
            disks: vec![EventDisk { number: 0, stun_us: 210, flush_us: 1500, bytes_moved: 0 }],
            message: None,
        };
        assert_eq!(
            describe(&event),
            "2026-11-20T12:00:00.123Z  web@a  take  stun 210 us\n    web/disk0  stun 210 us, flush 1.50 ms"
        );
    }
    #[test]
    fn a_disk_is_named_as_such_and_not_as_a_snapshot() {
        let of = |operation: Operation, subject: &str| {
            object(&Event {
                id: 1,
                time: "2026-11-20T12:00:00Z".parse().unwrap(),
                vm: "web".parse().unwrap(),
                operation,
                snapshot: Some(subject.into()),
                stun_us: 0,
                frozen_us: 0,
                disks: Vec::new(),
                message: None,
            })
        };
        assert_eq!(of(Operation::Defragment, "disk0"), "web/disk0");
        assert_eq!(of(Operation::Defragment, "disk0, disk1"), "web/disk0, web/disk1");
        assert_eq!(of(Operation::Disks, "disk2"), "web/disk2");
        assert_eq!(of(Operation::SpaceExhausted, "web/disk0"), "web/disk0");
        assert_eq!(of(Operation::CommitStart, "a, b"), "web@a, b");
    }
}
