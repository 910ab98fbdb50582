//! Measures a vhost-user-blk server: random 4 KiB requests, 70 % reads, at a fixed depth.
//!
//!     cargo run --release -p export --example vhostload -- SOCKET DEPTH SECONDS
//!
//! Prints a JSON object: requests per second, the mean latency in microseconds, and the processor time of the server per
//! request in microseconds. The client is a driver without a guest. It uses event-idx, and polls briefly before it
//! sleeps.

// It measures real time.
#![allow(clippy::disallowed_methods)]

#[path = "../tests/vhost_user/client.rs"]
mod client;

use std::path::Path;
use std::time::{Duration, Instant};

use client::{Client, FEATURES};
use export::vhost_user::protocol::{BLK_IN, BLK_OUT, STATUS_OK};

const BLOCK: u64 = 4096;
const READS_PERCENT: u64 = 70;
/// Clock ticks per second of `/proc/PID/stat` on Linux.
const TICKS_S: f64 = 100.0;
/// Looks at the ring of answers before the client sleeps, as a busy guest polls a little.
const LOOKS: u32 = 50;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Returns the processor time of the process at the other end of the socket, in seconds.
fn processor_time(client: &Client) -> f64 {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&client.stream) else { return 0.0 };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", peer.pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_S
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [socket, depth, seconds] => depth.parse().ok().zip(seconds.parse().ok()).map(|both| (socket, both)),
        _ => None,
    };
    let Some((socket, (depth, seconds))) = parsed else {
        eprintln!("usage: vhostload SOCKET DEPTH SECONDS");
        std::process::exit(2);
    };
    run(Path::new(socket), depth, Duration::from_secs_f64(seconds));
}

fn run(socket: &Path, depth: u64, time: Duration) {
    let mut client = Client::connect(socket, 128);
    let base = client.offered();
    client.set_up(FEATURES & base, 0);
    client.start();
    let blocks = u64::from_le_bytes(client.config(0, 8).try_into().expect("8 bytes")) * 512 / BLOCK;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (began, processor) = (Instant::now(), processor_time(&client));
    let mut free: Vec<u64> = (0..depth).collect();
    let mut done = 0u64;
    while began.elapsed() < time || free.len() < depth as usize {
        let before = client.next;
        if began.elapsed() < time {
            for slot in free.drain(..) {
                let kind = if random.below(100) < READS_PERCENT { BLK_IN } else { BLK_OUT };
                client.prepare(slot, kind, random.below(blocks) * BLOCK / 512, BLOCK as u32);
                client.publish(3 * slot as u16);
            }
            client.kick_if_wanted(before);
        }
        let mut answer = (0..LOOKS).find_map(|_| client.answer());
        if answer.is_none() {
            answer = Some(client.wait());
        }
        while let Some((head, _)) = answer {
            let slot = u64::from(head) / 3;
            assert_eq!(client.status(slot), STATUS_OK);
            free.push(slot);
            done += 1;
            answer = client.answer();
        }
    }
    let spent = began.elapsed().as_secs_f64();
    let processor_us = (processor_time(&client) - processor) * 1e6 / done as f64;
    let latency_us = spent * 1e6 * depth as f64 / done as f64;
    let iops = done as f64 / spent;
    println!(r#"{{"iops": {iops:.0}, "latency_us": {latency_us:.1}, "server_us": {processor_us:.2}}}"#);
}
