//! What the console shows beside the state of the daemon.

use std::sync::Arc;

use tokio::sync::watch;

use crate::recorder::Recorder;

#[derive(Clone)]
pub(crate) struct Shown {
    pub recorder: Arc<Recorder>,
    /// Changes when the daemon ends: the streams of ticks end then.
    pub ends: watch::Receiver<bool>,
}
