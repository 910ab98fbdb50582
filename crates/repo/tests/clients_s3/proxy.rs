//! A proxy before a store, which does what networks and stores do: it closes connections, loses answers, refuses requests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::http::{self, Request};
use crate::memory_bucket::MemoryBucket;
use crate::versitygw::Versitygw;

/// What stores the objects.
pub(crate) enum Store {
    Memory(MemoryBucket),
    Versitygw(Versitygw),
}

/// What happens to a request.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// The answer is this error; the store does not get the request.
    Refuse { status: &'static str, code: &'static str },
    /// The answer is this page; the store does not get the request.
    Page { status: &'static str, body: &'static str },
    /// The connection ends before the store gets the request.
    Close,
    /// The store carries the request out, and the connection ends without an answer.
    LoseAnswer,
    /// As `LoseAnswer`, but the connection is reset.
    Reset,
    /// The store carries the request out, and half of the answer's body arrives.
    Truncate,
    /// The store carries the request out. No answer comes, and the connection stays open.
    Silence,
    /// The store gets the request without its condition.
    Unconditional,
    /// The store gets the request as one of another year.
    Old,
}

/// Requests that something happens to.
struct Rule {
    method: &'static str,
    part: &'static str,
    times: usize,
    action: Action,
}

struct Shared {
    store: Store,
    rules: Mutex<Vec<Rule>>,
    /// Requests that something happened to.
    applied: Mutex<Vec<String>>,
    ends: AtomicBool,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    pub address: SocketAddr,
}

impl Proxy {
    pub(crate) fn start(store: Store) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared {
            store,
            rules: Mutex::default(),
            applied: Mutex::default(),
            ends: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.ends.load(Ordering::SeqCst) {
                    return;
                }
                let (serving, stream) = (serving.clone(), stream.unwrap());
                // A client that has gone is none of the proxy's errors.
                thread::spawn(move || drop(serving.serve(stream)));
            }
        });
        Proxy { shared, address }
    }

    /// Applies `action` to the next `times` requests whose method is `method` (or any, if that is empty) and whose target
    /// has `part`.
    pub(crate) fn rule(&self, method: &'static str, part: &'static str, times: usize, action: Action) {
        self.shared.rules.lock().unwrap().push(Rule { method, part, times, action });
    }

    /// Removes all rules. Returns the requests that something happened to.
    pub(crate) fn clear(&self) -> Vec<String> {
        self.shared.rules.lock().unwrap().clear();
        std::mem::take(&mut self.shared.applied.lock().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Threads that still use the store may outlive the last test, and it would outlive them.
        if let Store::Versitygw(server) = &self.shared.store {
            server.stop();
        }
        self.shared.ends.store(true, Ordering::SeqCst);
        // The thread waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(mut request) = Request::read(&mut stream)? else { return Ok(()) };
        let Some(action) = self.action(&request) else {
            return stream.write_all(&self.ask(&request)?);
        };
        match action {
            Action::Refuse { status, code } => stream.write_all(&http::error(status, code, "In passing.")),
            Action::Page { status, body } => stream.write_all(&http::answer(status, "", body.as_bytes())),
            Action::Close => Ok(()),
            Action::LoseAnswer => self.ask(&request).map(drop),
            Action::Reset => {
                self.ask(&request)?;
                Ok(rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?)
            }
            Action::Truncate => {
                let answer = self.ask(&request)?;
                let head = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
                stream.write_all(&answer[..head + (answer.len() - head) / 2])
            }
            Action::Silence => {
                self.ask(&request)?;
                // Until the client gives up.
                stream.read_to_end(&mut Vec::new()).map(drop)
            }
            Action::Unconditional => {
                request.headers.retain(|(name, _)| name != "if-none-match");
                stream.write_all(&self.ask(&request)?)
            }
            Action::Old => {
                let now = request.header("x-amz-date").expect("a time").to_owned();
                for (_, value) in &mut request.headers {
                    *value = value.replace(&now, "20200101T000000Z").replace(&now[..8], "20200101");
                }
                stream.write_all(&self.ask(&request)?)
            }
        }
    }

    fn action(&self, request: &Request) -> Option<Action> {
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| {
            rule.times > 0
                && (rule.method.is_empty() || rule.method == request.method)
                && request.target.contains(rule.part)
        })?;
        rule.times -= 1;
        self.applied.lock().unwrap().push(format!("{} {}", request.method, request.target));
        Some(rule.action.clone())
    }

    fn ask(&self, request: &Request) -> std::io::Result<Vec<u8>> {
        match &self.store {
            Store::Memory(bucket) => Ok(bucket.answer(request)),
            Store::Versitygw(server) => request.forward(server.address),
        }
    }
}
