//! A file server over a network (NFS). Each call takes a round trip and time of one of the server's threads, and
//! transfers its bytes over one link.

use super::model::Model;
use super::server::{Access, LowerDevice, Request, Serial, Server, Slab, Timers};
use crate::rng::Rng;

/// Parameters of a file server. Times in ns.
#[derive(Debug, Clone, PartialEq)]
pub struct Remote {
    pub round_trip_ns: u64,
    /// Time of a thread for each call.
    pub server_ns: u64,
    pub threads: u32,
    /// Transfer time of the link, both directions together.
    pub per_kib_ns: u64,
    /// Device on which the server keeps its files.
    pub back: Box<Model>,
}

/// Maximum number of threads of a server; the earliest free one is searched linearly.
const THREADS_MAX: u32 = 1024;

enum Stage {
    /// Under way to the server, or waiting for a thread.
    Coming,
    /// At the device behind the server.
    Served,
    Answered,
}

struct Call {
    request: Request,
    stage: Stage,
}

pub(crate) struct FileServer {
    remote: Remote,
    back: LowerDevice,
    threads_free_ns: Vec<u64>,
    wire: Serial,
    calls: Slab<Call>,
    timers: Timers,
    arrived: Vec<u32>,
}

impl FileServer {
    pub(super) fn new(remote: Remote, rng: &mut Rng) -> FileServer {
        let threads = remote.threads;
        assert!(
            (1..=THREADS_MAX).contains(&threads),
            "{threads} threads, 1 to {THREADS_MAX} can be simulated"
        );
        FileServer {
            back: LowerDevice::new(remote.back.server(rng)),
            threads_free_ns: vec![0; threads as usize],
            wire: Serial::default(),
            calls: Slab::default(),
            timers: Timers::default(),
            arrived: Vec::new(),
            remote,
        }
    }

    /// Returns the end of a transfer in one direction that begins now.
    fn over_the_wire_ns(&mut self, now_ns: u64, request: &Request, with_data: Access) -> u64 {
        if request.access != with_data {
            return now_ns;
        }
        self.wire.pass(now_ns, self.remote.per_kib_ns * request.len.div_ceil(1024))
    }

    /// Returns when a thread has processed a call that arrives at `at_ns`.
    fn seen_ns(&mut self, at_ns: u64) -> u64 {
        let free = self.threads_free_ns.iter_mut().min().expect("a thread at least");
        *free = at_ns.max(*free) + self.remote.server_ns;
        *free
    }

    fn answer(&mut self, now_ns: u64, id: u32) {
        let request = self.calls.get(id).request;
        let sent_ns = self.over_the_wire_ns(now_ns, &request, Access::Read);
        self.calls.get(id).stage = Stage::Answered;
        self.timers.push(sent_ns + self.remote.round_trip_ns / 2, id);
    }
}

impl Server for FileServer {
    fn submit(&mut self, now_ns: u64, request: Request) -> Option<u64> {
        let id = self.calls.add(Call { request, stage: Stage::Coming });
        let sent_ns = self.over_the_wire_ns(now_ns, &request, Access::Write);
        let seen_ns = self.seen_ns(sent_ns + self.remote.round_trip_ns / 2);
        self.timers.push(seen_ns, id);
        None
    }

    fn next_ns(&self) -> u64 {
        self.timers.next_ns().min(self.back.next_ns())
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<u32>) {
        while let Some(id) = self.timers.pop_due(now_ns) {
            let call = self.calls.get(id);
            if let Stage::Coming = call.stage {
                call.stage = Stage::Served;
                self.back.submit(now_ns, Request { tag: id, ..call.request });
            } else {
                done.push(self.calls.remove(id).request.tag);
            }
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        self.back.advance(now_ns, &mut arrived);
        arrived.drain(..).for_each(|id| self.answer(now_ns, id));
        self.arrived = arrived;
    }

    fn reset(&mut self) {
        self.back.reset();
        self.threads_free_ns.fill(0);
        self.wire = Serial::default();
        self.calls = Slab::default();
        self.timers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::flash::Flash;
    use super::super::trial::*;
    use super::*;

    fn server(threads: u32) -> Model {
        let back = Flash {
            read_ns: 100_000,
            write_ns: 200_000,
            flush_ns: 200_000,
            read_per_kib_ns: 0,
            write_per_kib_ns: 0,
            lanes: 64,
            write_lanes: 0,
            gap_ns: 0,
            gap_per_kib_ns: 0,
        };
        Model::Remote(Remote {
            round_trip_ns: 400_000,
            server_ns: 50_000,
            threads,
            // 1 Gbit/s.
            per_kib_ns: 8_192,
            back: Box::new(Model::Flash(back)),
        })
    }

    #[test]
    fn a_call_takes_a_round_trip_a_thread_a_device_and_a_wire() {
        let read = load(&server(8), 1, 500, random(Access::Read, 4096, GIB));
        assert_near(read.mean_ns, 400e3 + 50e3 + 100e3 + 4.0 * 8192.0, 0.001, "read, ns");
        let write = load(&server(8), 1, 500, random(Access::Write, 4096, GIB));
        assert_near(write.mean_ns, 400e3 + 50e3 + 200e3 + 4.0 * 8192.0, 0.001, "write, ns");
    }

    #[test]
    fn threads_and_wire_are_the_caps() {
        let one_thread = load(&server(1), 64, 20_000, random(Access::Read, 512, GIB));
        assert_near(one_thread.per_s, 20_000.0, 0.01, "calls/s of one thread");
        let wide = load(&server(8), 32, 5_000, random(Access::Read, 65_536, GIB));
        assert_near(wide.per_s * 65_536.0, 125e6, 0.01, "bytes/s of the wire");
    }
}
