//! The file of the alarms, `alarms` in the own folder of the main datastore: their states, mutes and thresholds as JSON.

use std::rc::Rc;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
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

    /// Gives thresholds and mutes of VMs with another name that name. Returns whether there were any. A pattern stays what it is.
    pub(super) fn follow(&mut self, renamed: &[(VmName, VmName)]) -> bool {
        let mut is_changed = false;
        for (old, new) in renamed {
            let thresholds = self.thresholds.iter_mut().map(|one| &mut one.vm);
            let named = thresholds.chain(self.mutes.iter_mut().map(|one| &mut one.vm)).flatten();
            for vm in named.filter(|vm| vm.as_str() == old.as_str()) {
                *vm = new.as_str().parse().expect("a VM's name is a pattern of it alone");
                is_changed = true;
            }
            for id in self.mutes.iter_mut().filter_map(|one| one.alarm.as_mut()) {
                // `RULE:VM`; a VM's name has no colon.
                if let Some((rule, name)) = id.split_once(':')
                    && name == old.as_str()
                {
                    *id = format!("{rule}:{new}");
                    is_changed = true;
                }
            }
        }
        is_changed
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thresholds_and_mutes_follow_a_vm_to_its_new_name_and_patterns_stay() {
        let rule = |vm: &str| json!({"rule": "snapshot_old", "vm": vm, "tag": null, "value": 3});
        let mute = |alarm: Option<&str>, vm: Option<&str>| json!({"id": 1, "alarm": alarm, "rule": null, "vm": vm, "until": "2026-11-28T00:00:00Z", "by": "root"});
        let text = json!({
            "thresholds": [rule("web"), rule("we*")],
            "mutes": [mute(Some("latency:web"), None), mute(Some("latency:webs"), None), mute(None, Some("web"))],
        });
        let mut stored = parse(text.to_string().as_bytes()).unwrap();
        let name = |text: &str| text.parse::<VmName>().unwrap();
        assert!(!stored.follow(&[(name("db"), name("database"))]));
        assert!(stored.follow(&[(name("web"), name("shop"))]));
        let text = String::from_utf8(stored.to_text()).unwrap();
        for kept in [r#""vm":"we*""#, r#""latency:webs""#, r#""latency:shop""#] {
            assert!(text.contains(kept), "{text}");
        }
        assert_eq!(text.matches(r#""vm":"shop""#).count(), 2, "{text}");
        assert!(!text.contains("web\""), "{text}");
    }
}
