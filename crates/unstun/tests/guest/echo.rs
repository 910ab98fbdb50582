//! One echo a second over UDP, like an administrator's ping.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);
/// Delay after which an echo is lost. It is generous, because emulation on a busy machine sometimes stands still for a
/// second.
const LOST_AFTER: Duration = Duration::from_secs(20);

pub(crate) struct Echoes {
    pub sent: usize,
    pub lost: usize,
    pub slowest: Duration,
}

pub(crate) struct Prober {
    seconds: Receiver<()>,
    stop: Sender<()>,
    thread: JoinHandle<Echoes>,
}

impl Prober {
    /// Starts probing; `socket` is connected to the guest.
    pub(crate) fn start(socket: UdpSocket) -> Prober {
        let (tick, seconds) = channel();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || probe(&socket, &tick, &stopped));
        Prober { seconds, stop, thread }
    }

    /// Returns after so many more periods.
    pub(crate) fn wait(&self, periods: usize) {
        while self.seconds.try_recv().is_ok() {}
        for _ in 0..periods {
            self.seconds.recv().expect("the prober runs");
        }
    }

    pub(crate) fn stop(self) -> Echoes {
        drop(self.stop);
        self.thread.join().expect("the prober ends well")
    }
}

fn probe(socket: &UdpSocket, tick: &Sender<()>, stopped: &Receiver<()>) -> Echoes {
    let mut probe = Probe { socket, sent_at: Vec::new(), took: Vec::new() };
    while stopped.try_recv() != Err(TryRecvError::Disconnected) {
        let began = Instant::now();
        probe.send();
        probe.receive_until(began + PERIOD, false);
        // The receiver is closed once the scenario has ended.
        let _ = tick.send(());
    }
    probe.receive_until(Instant::now() + LOST_AFTER, true);
    let lost = probe.took.iter().filter(|took| took.is_none_or(|took| took > LOST_AFTER)).count();
    let slowest = probe.took.iter().flatten().copied().max().unwrap_or_default();
    Echoes { sent: probe.took.len(), lost, slowest }
}

struct Probe<'a> {
    socket: &'a UdpSocket,
    sent_at: Vec<Instant>,
    took: Vec<Option<Duration>>,
}

impl Probe<'_> {
    fn send(&mut self) {
        let number = self.sent_at.len() as u64;
        self.sent_at.push(Instant::now());
        self.took.push(None);
        self.socket.send(&number.to_be_bytes()).expect("a socket of this machine");
    }

    /// Receives until `end`, or until all echoes have arrived if `or_all` is set.
    fn receive_until(&mut self, end: Instant, or_all: bool) {
        let mut bytes = [0; 8];
        while !(or_all && self.took.iter().all(Option::is_some)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.socket.set_read_timeout(Some(left)).expect("not zero");
            match self.socket.recv(&mut bytes) {
                Ok(_) => {
                    let number = u64::from_be_bytes(bytes) as usize;
                    self.took[number].get_or_insert(self.sent_at[number].elapsed());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
                Err(error) => panic!("the guest's side of the echo is gone: {error}"),
            }
        }
    }
}
