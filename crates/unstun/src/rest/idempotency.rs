//! Requests with a key of their client, each of which is carried out once: a client that got no answer sends the request
//! again with the same key, and gets the answer of the first.
//!
//! The answers of successes are kept, in memory: a request that failed has changed nothing and is carried out again, except
//! one that continues without its caller. After a restart of the daemon the keys are unknown.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::error::{Error, ErrorKind, Result};
use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::Response;
use sha2::{Digest, Sha256};

use crate::access::rights::Right;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Header of an answer that is not the first.
const REPEATED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The key of a UUID or a hash has 36 or 64 characters.
const KEY_BYTES_MAX: usize = 255;
/// Time for which an answer is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of kept answers, of all callers.
const ANSWERS_MAX: usize = 1000;
/// Maximum size of a kept answer: a VM of 60 disks has less. 64 MiB in all.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The caller, and its key.
type Key = (String, String);

/// SHA-256 of what a request asks for: two with the same key must be the same.
pub(super) type Asked = [u8; 32];

pub(super) fn asked(method: &Method, uri: &Uri, body: &[u8]) -> Asked {
    Sha256::new().chain_update(format!("{method} {uri}\n")).chain_update(body).finalize().into()
}

#[derive(Debug)]
enum State {
    UnderWay,
    Done(StatusCode, Bytes),
    /// Its caller was told that it continues.
    Continues,
}

#[derive(Debug, Default)]
struct Known {
    requests: HashMap<Key, (Asked, State)>,
    /// Those that are not under way, the oldest first.
    done: VecDeque<(Instant, Key)>,
}

#[derive(Default)]
pub(crate) struct Repeats(Mutex<Known>);

/// What becomes of a request.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is carried out; its answer is handed to the `First`.
    First(First),
    /// The answer of the first.
    Answered(Response),
}

/// The first request with a key. Without an answer it is forgotten.
pub(super) struct First {
    repeats: Arc<Repeats>,
    key: Key,
    is_done: bool,
}

impl std::fmt::Debug for First {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "First({:?})", self.key)
    }
}

/// Returns the key that a request to change something has.
pub(super) fn key(headers: &HeaderMap, right: &Right) -> Result<Option<String>> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    if matches!(right.operation, "token create" | "console") {
        let message = "Idempotency-Key: the answer has a secret, which the daemon does not keep; send no key";
        return Err(Error::malformed(message));
    }
    match value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= KEY_BYTES_MAX) {
        Some(key) => Ok(Some(key.to_owned())),
        None => {
            Err(Error::malformed(format!("Idempotency-Key: expected 1 to {KEY_BYTES_MAX} ASCII characters")))
        }
    }
}

impl Repeats {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request, or returns the answer of the first with this key.
    pub(super) fn begin(
        self: &Arc<Self>,
        who: &str,
        key: String,
        asked: Asked,
        now: Instant,
    ) -> Result<Begun> {
        let key = (who.to_owned(), key);
        let mut known = self.known();
        known.forget(now);
        let refuse = |message: &str| Err(Error::new(ErrorKind::Refused, message));
        match known.requests.get(&key) {
            None => {
                known.requests.insert(key.clone(), (asked, State::UnderWay));
                Ok(Begun::First(First { repeats: self.clone(), key, is_done: false }))
            }
            Some((other, _)) if *other != asked => {
                refuse("Idempotency-Key: another request had this key; nothing was changed")
            }
            Some((_, State::UnderWay)) => {
                refuse("Idempotency-Key: the first request with this key is under way; ask again")
            }
            Some((_, State::Continues)) => refuse(
                "Idempotency-Key: the first request with this key continues without its caller, as its answer said; see what \
                 became of it in the VM's events, and send another key with another request",
            ),
            Some((_, State::Done(status, body))) => {
                let mut response = response(*status, body.clone());
                response.headers_mut().insert(REPEATED, HeaderValue::from_static("true"));
                Ok(Begun::Answered(response))
            }
        }
    }
}

impl Known {
    fn forget(&mut self, now: Instant) {
        let is_over = |done: &VecDeque<(Instant, Key)>| {
            done.front().is_some_and(|(at, _)| now.duration_since(*at) >= KEPT) || done.len() >= ANSWERS_MAX
        };
        while is_over(&self.done) {
            let (_, key) = self.done.pop_front().expect("there are some");
            self.requests.remove(&key);
        }
    }
}

fn response(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl First {
    /// Keeps the answer, if it is a success, and returns it.
    pub(super) async fn answered(mut self, answer: Response, now: Instant) -> Response {
        if !answer.status().is_success() {
            if answer.extensions().get::<Error>().is_some_and(|error| error.kind == ErrorKind::UnderWay) {
                self.keep(State::Continues, now);
            }
            return answer;
        }
        let (parts, body) = answer.into_parts();
        // Answers are made in memory; reading them cannot fail.
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        if body.len() <= ANSWER_BYTES_MAX {
            self.keep(State::Done(parts.status, body.clone()), now);
        }
        Response::from_parts(parts, Body::from(body))
    }

    fn keep(&mut self, state: State, now: Instant) {
        let mut known = self.repeats.known();
        if let Some((_, of_request)) = known.requests.get_mut(&self.key) {
            *of_request = state;
            known.done.push_back((now, self.key.clone()));
            self.is_done = true;
        }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if !self.is_done {
            self.repeats.known().requests.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(route: &'static str) -> Asked {
        asked(&Method::POST, &Uri::from_static(route), b"{}")
    }

    #[test]
    fn requests_differ_by_method_address_and_body() {
        let one = of("/vms");
        assert_ne!(one, of("/vms?x"));
        assert_ne!(one, asked(&Method::PUT, &Uri::from_static("/vms"), b"{}"));
        assert_ne!(one, asked(&Method::POST, &Uri::from_static("/vms"), b"{} "));
    }

    fn begin(repeats: &Arc<Repeats>, key: &str, route: &'static str, now: Instant) -> Result<Begun> {
        repeats.begin("token ci", key.to_owned(), of(route), now)
    }

    async fn end(begun: Begun, status: StatusCode, now: Instant) {
        let Begun::First(first) = begun else { panic!("{begun:?}") };
        first.answered(response(status, Bytes::from_static(b"[1]")), now).await;
    }

    #[tokio::test]
    async fn a_request_is_carried_out_once() {
        let (repeats, now) = (Arc::<Repeats>::default(), Instant::now());
        let first = begin(&repeats, "k", "/vms", now).unwrap();
        let error = begin(&repeats, "k", "/vms", now).unwrap_err();
        assert!(error.message.contains("under way"), "{error}");
        end(first, StatusCode::CREATED, now).await;
        let Begun::Answered(again) = begin(&repeats, "k", "/vms", now).unwrap() else { panic!() };
        assert_eq!(
            (again.status(), again.headers()[REPEATED].as_bytes()),
            (StatusCode::CREATED, &b"true"[..])
        );
        assert_eq!(to_bytes(again.into_body(), 9).await.unwrap(), "[1]");
        let error = begin(&repeats, "k", "/import", now).unwrap_err();
        assert!(error.message.contains("another request"), "{error}");
        let other = repeats.begin("token b", "k".into(), of("/import"), now).unwrap();
        assert!(matches!(other, Begun::First(_)), "another caller's key is another key");
        drop(other);
        assert!(matches!(begin(&repeats, "k", "/vms", now + KEPT).unwrap(), Begun::First(_)));
    }

    #[tokio::test]
    async fn a_request_that_failed_or_vanished_is_carried_out_again() {
        let (repeats, now) = (Arc::<Repeats>::default(), Instant::now());
        end(begin(&repeats, "k", "/vms", now).unwrap(), StatusCode::INSUFFICIENT_STORAGE, now).await;
        drop(begin(&repeats, "k", "/vms", now).unwrap());
        assert!(matches!(begin(&repeats, "k", "/vms", now).unwrap(), Begun::First(_)));
    }

    #[tokio::test]
    async fn a_request_that_continues_is_not_carried_out_again() {
        let (repeats, now) = (Arc::<Repeats>::default(), Instant::now());
        let Begun::First(first) = begin(&repeats, "k", "/vms", now).unwrap() else { panic!() };
        let mut answer = response(StatusCode::SERVICE_UNAVAILABLE, Bytes::new());
        answer.extensions_mut().insert(Error::new(ErrorKind::UnderWay, "it continues"));
        first.answered(answer, now).await;
        let error = begin(&repeats, "k", "/vms", now).unwrap_err();
        assert!(error.message.contains("continues without its caller"), "{error}");
        assert!(matches!(begin(&repeats, "k", "/vms", now + KEPT).unwrap(), Begun::First(_)));
    }

    #[tokio::test]
    async fn the_number_of_answers_is_bounded() {
        let (repeats, now) = (Arc::<Repeats>::default(), Instant::now());
        for n in 0..ANSWERS_MAX + 10 {
            end(begin(&repeats, &n.to_string(), "/vms", now).unwrap(), StatusCode::OK, now).await;
        }
        let known = repeats.known();
        assert!(known.done.len() <= ANSWERS_MAX && known.requests.len() == known.done.len());
    }
}
