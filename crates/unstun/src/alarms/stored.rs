//! The file of the alarms, `alarms` in the own folder of the main datastore: their states, mutes and thresholds as JSON.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::{Alarm, AlarmMuted, AlarmThreshold};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::evaluate::States;
use crate::daemon::{CoreHandle, Daemon, Subject};

const FILE_NAME: &str = "alarms";

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Stored {
    pub alarms: States,
    pub mutes: Vec<AlarmMuted>,
    pub thresholds: Vec<AlarmThreshold>,
}

pub(super) async fn read(daemon: Rc<Daemon>) -> Result<Vec<u8>> {
    daemon.own_file(FILE_NAME).await
}

pub(super) fn parse(bytes: &[u8]) -> Result<Stored> {
    if bytes.is_empty() {
        return Ok(Stored::default());
    }
    serde_json::from_slice(bytes)
        .map_err(|e| Error::new(ErrorKind::Damaged, format!(".unstun/{FILE_NAME}: {e}")))
}

pub(super) async fn write(core: &CoreHandle, text: Vec<u8>) -> Result<()> {
    let write = async move |daemon: Rc<Daemon>| daemon.replace_own_file(FILE_NAME, &text).await;
    core.ask(Subject::Datastore(None), write).await
}

impl Stored {
    pub(super) fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("alarms are JSON")
    }

    /// Returns the alarms that last, the most severe first; with `all` also those that have ended, the last first.
    pub(super) fn list(&self, all: bool) -> Vec<Alarm> {
        let mut lasting: Vec<_> = self.alarms.lasting.values().cloned().collect();
        lasting.sort_by_key(|alarm| (std::cmp::Reverse(alarm.severity), alarm.raised));
        let ended = self.alarms.ended.iter().rev().filter(|_| all).cloned();
        lasting.into_iter().chain(ended).collect()
    }

    /// Removes the mutes that have ended. Returns whether there were any.
    pub(super) fn end_mutes(&mut self, now: Timestamp) -> bool {
        let before = self.mutes.len();
        self.mutes.retain(|mute| mute.until > now);
        self.mutes.len() < before
    }

    pub(super) fn is_mute(&self, alarm: &Alarm, now: Timestamp) -> bool {
        self.mutes.iter().filter(|mute| mute.until > now).any(|mute| {
            let of_vm = mute
                .vm
                .as_ref()
                .is_none_or(|glob| alarm.vm.as_ref().is_some_and(|vm| glob.matches(vm.as_str())));
            mute.alarm.as_ref() == Some(&alarm.id) || mute.rule == Some(alarm.rule) && of_vm
        })
    }
}
