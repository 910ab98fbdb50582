//! `GET /events`: the events of all VMs as they happen, as a stream of server-sent events. A client that was cut off sends
//! the ID of its last event and misses nothing.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Event;
use axum::Router;
use axum::extract::{Extension, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::routing::get;
use futures_util::{Stream, stream};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tokio::sync::watch;

use super::{Failure, Parameters, malformed};
use crate::access::authorize::Access;
use crate::access::callers::{Caller, Origin};
use crate::console::Shown;
use crate::daemon::{Daemon, EventFeed, EventPosition, Subject};

const LAST_EVENT_ID: &str = "last-event-id";
/// Interval at which an idle stream sends a comment, so that both ends find out that the other has gone, and at which the
/// caller's token is checked again.
const IDLE: Duration = Duration::from_secs(15);
/// Where the place of the last event is not known any more, events from so long before it are sent again: some come twice,
/// and none is left out because another of the same time came before it.
const AGAIN: SignedDuration = SignedDuration::from_secs(2);

/// Maximum number of events that a client gets again by their time, the last ones.
const EVENTS_MAX: usize = 10_000;

/// A client that follows the events.
struct Follower {
    access: Arc<Access>,
    caller: Caller,
    origin: Origin,
    credentials: Option<HeaderValue>,
    checked: Instant,
    feed: Arc<EventFeed>,
    added: watch::Receiver<()>,
    /// Changes when the daemon ends.
    ends: watch::Receiver<bool>,
    position: EventPosition,
    /// Whether it waits for new events.
    follow: bool,
    pending: VecDeque<(EventPosition, Arc<Event>)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Following {
    /// Whether the stream continues with new events.
    #[serde(default = "follows")]
    follow: bool,
}

fn follows() -> bool {
    true
}

pub(super) fn routes(shown: Shown) -> Router<Arc<Access>> {
    Router::new().route("/events", get(stream_events)).layer(Extension(shown))
}

async fn stream_events(
    State(access): State<Arc<Access>>,
    Extension(caller): Extension<Caller>,
    Extension(origin): Extension<Origin>,
    Extension(Shown { ends, .. }): Extension<Shown>,
    Parameters(Following { follow }): Parameters<Following>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Failure> {
    let last = headers.get(LAST_EVENT_ID).map(|value| {
        let text = value.to_str().unwrap_or_default();
        text.parse::<EventPosition>().map_err(|e| malformed(format!("Last-Event-ID: {e}")))
    });
    let last = last.transpose()?;
    // The end comes first: what happens during the look may come twice, and is not left out.
    let look = async move |daemon: Rc<Daemon>| {
        let (feed, end) = (daemon.feed.clone(), daemon.feed.end());
        let missed = match last.map(|last| (last, feed.after(last))) {
            None => Vec::new(),
            Some((_, Some(missed))) => missed,
            Some((last, None)) => {
                let since = last.time().checked_sub(AGAIN).unwrap_or(Timestamp::UNIX_EPOCH);
                let newest_first = daemon.last_events(since, EVENTS_MAX).await.into_iter();
                newest_first
                    .rev()
                    .map(|event| (EventPosition::of_time(event.time), Arc::new(event)))
                    .collect()
            }
        };
        Ok((feed, end, missed))
    };
    let (feed, position, missed) = access.core.ask(Subject::None, look).await?;
    let follower = Follower {
        credentials: headers.get(AUTHORIZATION).cloned(),
        checked: Instant::now(),
        added: feed.added(),
        pending: missed.into(),
        access,
        caller,
        origin,
        feed,
        ends,
        position,
        follow,
    };
    let events = stream::unfold(follower, async |mut follower| {
        let (position, event) = follower.next().await?;
        let data = serde_json::to_string(&*event).expect("an event is JSON");
        let sent = sse::Event::default().id(position.to_string()).event(event.operation.as_str()).data(data);
        Some((Ok(sent), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(IDLE)))
}

impl Follower {
    /// Returns the next event of the caller's VMs; None ends the stream.
    async fn next(&mut self) -> Option<(EventPosition, Arc<Event>)> {
        loop {
            self.may_continue().await.then_some(())?;
            while let Some((position, event)) = self.pending.pop_front() {
                if self.caller.reaches(event.vm.as_str()) {
                    return Some((position, event));
                }
            }
            if !self.follow {
                return None;
            }
            // A client that is too slow is cut off, and continues from the events on file.
            let more = self.feed.after(self.position)?;
            if let Some((position, _)) = more.last() {
                self.position = *position;
                self.pending = more.into();
                continue;
            }
            tokio::select! {
                _ = self.added.changed() => {}
                () = tokio::time::sleep(IDLE) => {}
                _ = self.ends.changed() => return None,
            }
        }
    }

    /// Returns whether the caller's token is still valid, with the same rights.
    async fn may_continue(&mut self) -> bool {
        if self.checked.elapsed() < IDLE {
            return true;
        }
        self.checked = Instant::now();
        let now = self.access.identify(&self.origin, self.credentials.clone()).await;
        now.is_ok_and(|now| now == self.caller)
    }
}
