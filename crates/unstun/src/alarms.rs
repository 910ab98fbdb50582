//! Alarms: looks at the daemon at an interval, keeps the state of each alarm on file, and has it delivered.
//!
//! They run on the API's thread. No request of a guest waits for a look.

pub(crate) mod deliver;
mod evaluate;
mod forecast;
mod observe;
mod operations;
mod stored;
mod thresholds;

pub(crate) use forecast::Trend;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::Alarm;
use api::error::{Error, Result};
use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::alarms::deliver::Channels;
use crate::alarms::evaluate::{Change, Notification};
use crate::alarms::forecast::Forecasts;
use crate::alarms::observe::Observer;
use crate::alarms::stored::Stored;
use crate::daemon::{CoreHandle, Subject};
use crate::recorder::Recorder;

/// Maximum time after the start until the first look.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(10);

/// The alarms of the daemon.
pub(crate) struct Alarms {
    core: Arc<CoreHandle>,
    state: Mutex<Stored>,
    forecasts: Mutex<Forecasts>,
    /// Why the file could not be read: alarms are raised all the same, and are not on file.
    broken: Option<Error>,
    /// One change of the file at a time.
    writing: tokio::sync::Mutex<()>,
    pub(crate) channels: Channels,
}

impl Alarms {
    /// Reads what is known of alarms. `channels` is the folder of the channels' files.
    pub(crate) async fn start(core: &Arc<CoreHandle>, datastore: &Path, channels: PathBuf) -> Arc<Alarms> {
        let read =
            core.ask(Subject::Datastore(None), stored::read).await.and_then(|bytes| stored::parse(&bytes));
        let (state, broken) = match read {
            Ok(state) => (state, None),
            Err(e) => {
                error!("what is known of alarms is lost: {e}");
                (Stored::default(), Some(e))
            }
        };
        let channels = Channels::new(channels, datastore);
        let forecasts = Mutex::new(Forecasts::read(core).await);
        Arc::new(Alarms {
            core: core.clone(),
            state: Mutex::new(state),
            forecasts,
            broken,
            writing: tokio::sync::Mutex::default(),
            channels,
        })
    }

    fn state(&self) -> MutexGuard<'_, Stored> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forecasts(&self) -> MutexGuard<'_, Forecasts> {
        self.forecasts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how the free space of a datastore has changed, and when it is full at that rate.
    pub(crate) fn trend(&self, datastore: &str, free_bytes: u64) -> Trend {
        self.forecasts().trend(datastore, free_bytes)
    }

    /// Returns the alarms that last, the most severe first; with `all` also those that have ended.
    pub(crate) fn list(&self, all: bool) -> Vec<Alarm> {
        self.state().list(all)
    }

    /// Looks at the daemon at an interval until `ends` changes.
    pub(crate) async fn keep(
        self: Arc<Alarms>,
        every: Duration,
        recorder: Arc<Recorder>,
        mut ends: watch::Receiver<bool>,
    ) {
        let mut observer = Observer::new(recorder);
        let mut wait = every.min(FIRST_LOOK_MAX);
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => wait = every,
                _ = ends.changed() => return,
            }
            self.look(&mut observer).await;
        }
    }

    async fn look(&self, observer: &mut Observer) {
        // The daemon may be ending.
        let Ok(figures) = self.core.ask(Subject::None, async |daemon| daemon.alarm_figures().await).await
        else {
            return;
        };
        let now = Timestamp::now();
        let samples = {
            let mut forecasts = self.forecasts();
            forecasts.add(now, &figures.metrics.status.datastores).then(|| forecasts.to_text())
        };
        if let Some(samples) = samples {
            Forecasts::write(&self.core, samples).await;
        }
        let is_renamed = self.state().follow(&figures.renamed);
        let thresholds = self.state().thresholds.clone();
        let findings = observer.observe(&figures, &thresholds, &self.forecasts(), now);
        let (notifications, is_changed) = {
            let mut state = self.state();
            let notifications = evaluate::evaluate(&mut state.alarms, findings, now);
            let ended = state.end_mutes(now);
            (notifications, ended)
        };
        notifications.iter().for_each(log);
        if is_changed || is_renamed || !notifications.is_empty() {
            self.write_or_warn().await;
        }
        let delivered: Vec<Alarm> = {
            let state = self.state();
            notifications
                .into_iter()
                .map(|one| one.alarm)
                .filter(|alarm| !state.is_mute(alarm, now))
                .collect()
        };
        self.channels.send(delivered, now).await;
    }

    async fn write_or_warn(&self) {
        if let Err(e) = self.write().await {
            warn!("the state of alarms is not on file: {e}");
        }
    }

    /// Durably replaces the file.
    async fn write(&self) -> Result<()> {
        let _turn = self.writing.lock().await;
        if let Some(e) = &self.broken {
            let message = format!(
                "{e}; the file is not replaced until it is moved aside and the daemon is started again"
            );
            return Err(Error::new(e.kind, message));
        }
        let text = self.state().to_text();
        stored::write(&self.core, text).await
    }
}

fn log(notification: &Notification) {
    let Notification { change, alarm } = notification;
    let (id, message) = (&alarm.id, &alarm.message);
    match change {
        Change::Raised => warn!("{} alarm {id}: {message}", alarm.severity.as_str()),
        Change::MoreSevere => warn!("alarm {id} is {} now: {message}", alarm.severity.as_str()),
        Change::Cleared => info!("alarm {id} has ended: {message}"),
    }
}
