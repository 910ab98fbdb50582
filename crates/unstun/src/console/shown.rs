//! What the console shows beside the state of the daemon.

use std::sync::Arc;

use tokio::sync::watch;

use super::report_files::ReportFolder;
use crate::recorder::Recorder;

#[derive(Clone)]
pub(crate) struct Shown {
    pub recorder: Arc<Recorder>,
    /// The folder of the lab's reports, if the user has named one.
    pub reports: Option<ReportFolder>,
    /// Changes when the daemon ends: the streams of ticks end then.
    pub ends: watch::Receiver<bool>,
}
