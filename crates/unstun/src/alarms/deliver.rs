//! Delivery of alarms over the channels of the host: webhooks, e-mail and commands.
//!
//! Each channel has a task of its own with a bounded queue, so that one that hangs holds up neither the looks nor the other
//! channels.

mod command;
mod config;
mod email;
mod webhook;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::error::{Error, Result};
use api::{Alarm, AlarmChannel, AlarmMessage};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use self::config::{Channel, Kind};
use crate::log::Reported;

/// Folder of the channels' files.
pub(crate) const CHANNELS_DIR: &str = "/etc/unstun/alarms";
/// Time after which a try of a delivery has failed.
const TRY_MAX: Duration = Duration::from_secs(10);
/// Waits before the second and later tries of a delivery.
const WAITS: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(300)];
/// Maximum number of messages that wait for a channel.
const QUEUE_MAX: usize = 32;
/// Maximum number of alarms of a message. With more, the message says how many it leaves out.
const ALARMS_MAX: usize = 20;

/// What is known of the deliveries of a channel.
#[derive(Debug, Clone, Default)]
struct Figures {
    delivered: u64,
    failed: u64,
    last: Option<Timestamp>,
    last_error: Option<String>,
}

type Shared = Arc<Mutex<BTreeMap<String, Figures>>>;

/// The channels of the host.
pub(crate) struct Channels {
    dir: PathBuf,
    datastore: String,
    figures: Shared,
    queues: Mutex<BTreeMap<String, mpsc::Sender<(Channel, AlarmMessage)>>>,
    /// Files that cannot be used; each is reported once.
    reported: Mutex<Reported<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channels {
    pub(super) fn new(dir: PathBuf, datastore: &Path) -> Channels {
        let datastore = datastore.display().to_string();
        Channels {
            dir,
            datastore,
            figures: Shared::default(),
            queues: Mutex::default(),
            reported: Mutex::default(),
        }
    }

    /// Lets all channels that take them deliver the alarms. The files are read each time.
    pub(super) async fn send(&self, alarms: Vec<Alarm>, now: Timestamp) {
        if alarms.is_empty() {
            return;
        }
        for (name, channel) in self.read().await {
            let channel = match channel {
                Ok(channel) => channel,
                Err(fault) if locked(&self.reported).is_news(fault.clone()) => {
                    error!("alarms are not delivered over channel {name}: {fault}");
                    continue;
                }
                Err(_) => continue,
            };
            let mut own: Vec<Alarm> = alarms.iter().filter(|alarm| channel.takes(alarm)).cloned().collect();
            if own.is_empty() {
                continue;
            }
            let more = own.len().saturating_sub(ALARMS_MAX) as u64;
            own.truncate(ALARMS_MAX);
            let message = AlarmMessage { more, ..self.message(own, now) };
            if let Err(e) = self.enqueue(&name, channel, message) {
                warn!("channel {name}: alarms are not delivered: {e}");
            }
        }
    }

    fn message(&self, alarms: Vec<Alarm>, time: Timestamp) -> AlarmMessage {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        AlarmMessage { host, datastore: self.datastore.clone(), time, alarms, more: 0, test: false }
    }

    async fn read(&self) -> BTreeMap<String, Result<Channel, String>> {
        let dir = self.dir.clone();
        tokio::task::spawn_blocking(move || config::read_all(&dir)).await.unwrap_or_default()
    }

    fn enqueue(&self, name: &str, channel: Channel, message: AlarmMessage) -> Result<(), String> {
        let mut queues = locked(&self.queues);
        let queue = queues.entry(name.to_owned()).or_insert_with(|| {
            let (queue, inbox) = mpsc::channel(QUEUE_MAX);
            tokio::spawn(work_off(name.to_owned(), inbox, self.figures.clone()));
            queue
        });
        queue.try_send((channel, message)).map_err(|_| {
            let cause = format!("{QUEUE_MAX} messages wait already");
            note(&self.figures, name, Err(cause.clone()));
            cause
        })
    }

    /// Returns the channels with the outcome of their deliveries since the start.
    pub(crate) async fn list(&self) -> Vec<AlarmChannel> {
        let all = self.read().await;
        let figures = locked(&self.figures);
        let show = |(name, channel): (String, Result<Channel, String>)| {
            let Figures { delivered, failed, last, last_error } =
                figures.get(&name).cloned().unwrap_or_default();
            let (kind, fault) = match channel {
                Ok(channel) => (Some(channel.kind.name().to_owned()), None),
                Err(fault) => (None, Some(fault)),
            };
            AlarmChannel { name, kind, fault, delivered, failed, last, last_error }
        };
        all.into_iter().map(show).collect()
    }

    /// Delivers a message that says it is a test, at once and without further tries.
    pub(crate) async fn test(&self, name: &str) -> Result<AlarmChannel> {
        let missing = || {
            let dir = self.dir.display();
            Error::not_found(format!("no alarm channel {name:?}: there is no file {name}.toml in {dir}"))
        };
        let channel = self.read().await.remove(name).ok_or_else(missing)?.map_err(Error::invalid)?;
        let message = AlarmMessage { test: true, ..self.message(Vec::new(), Timestamp::now()) };
        let outcome = deliver(&channel, &message).await;
        note(&self.figures, name, outcome.clone());
        outcome.map_err(|cause| Error::failed(format!("alarm channel {name}: {cause}")))?;
        let shown = self.list().await.into_iter().find(|one| one.name == name);
        shown.ok_or_else(missing)
    }
}

/// Notes how a delivery has ended.
fn note(figures: &Shared, name: &str, outcome: Result<(), String>) {
    let mut figures = locked(figures);
    let of = figures.entry(name.to_owned()).or_default();
    of.last = Some(Timestamp::now());
    match outcome {
        Ok(()) => (of.delivered, of.last_error) = (of.delivered + 1, None),
        Err(cause) => (of.failed, of.last_error) = (of.failed + 1, Some(cause)),
    }
}

/// Delivers the messages of a channel, one after the other.
async fn work_off(name: String, mut inbox: mpsc::Receiver<(Channel, AlarmMessage)>, figures: Shared) {
    while let Some((channel, message)) = inbox.recv().await {
        let mut outcome = deliver(&channel, &message).await;
        for wait in WAITS {
            let Err(cause) = &outcome else { break };
            info!("channel {name}: {cause}; the delivery is tried again in {} s", wait.as_secs());
            tokio::time::sleep(wait).await;
            outcome = deliver(&channel, &message).await;
        }
        if let Err(cause) = &outcome {
            error!("channel {name}: {} alarms were not delivered: {cause}", message.alarms.len());
        }
        note(&figures, &name, outcome);
    }
}

async fn deliver(channel: &Channel, message: &AlarmMessage) -> Result<(), String> {
    let trying = async {
        match &channel.kind {
            Kind::Webhook(webhook) => webhook::post(webhook, message).await,
            Kind::Email(email) => email::send(email, message).await,
            Kind::Command(words) => return command::run(words, message).await,
        }
    };
    match channel.kind {
        // It has a limit of its own, after which its processes are ended.
        Kind::Command(_) => trying.await,
        _ => tokio::time::timeout(TRY_MAX, trying)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", TRY_MAX.as_secs()))),
    }
}

/// Returns the lines of a message for people: the subject, and one paragraph for each alarm.
fn text(message: &AlarmMessage) -> (String, String) {
    let host = &message.host;
    if message.test {
        let text =
            format!("This is a test of the alarms of unstun on {host}, datastore {}.\n", message.datastore);
        return (format!("unstun on {host}: a test"), text);
    }
    let lines = message.alarms.iter().map(|alarm| {
        let state = if alarm.cleared.is_some() { "ended" } else { alarm.severity.as_str() };
        format!("{state}: {}\n{}\n", alarm.id, alarm.message)
    });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if message.more > 0 {
        text.push_str(&format!("\n... and {} more; `unstun alarm list` shows all.\n", message.more));
    }
    let subject = match &message.alarms[..] {
        [one] if one.cleared.is_some() => format!("{} has ended", one.id),
        [one] => format!("{} {}", one.severity.as_str(), one.id),
        all => format!("{} alarms", all.len() as u64 + message.more),
    };
    (format!("unstun on {host}: {subject}"), text)
}
