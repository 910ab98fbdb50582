//! What callers do with alarms.

use api::error::{Error, Result};
use api::{Acknowledged, Alarm, AlarmMute, AlarmMuted, AlarmRule, AlarmRuleShown, AlarmThreshold};
use jiff::{SignedDuration, Timestamp};

use super::{Alarms, thresholds};

/// Maximum number of mutes and of thresholds, each.
const ENTRIES_MAX: usize = 1000;

impl Alarms {
    pub(crate) fn find(&self, id: &str) -> Result<Alarm> {
        let found = self.state().alarms.lasting.get(id).cloned();
        found.ok_or_else(|| Error::not_found(format!("no alarm {id:?} lasts; see `unstun alarm list`")))
    }

    /// Replaces the file after a change that applies already.
    async fn write_or_say(&self) -> Result<()> {
        self.write().await.map_err(|e| {
            Error::new(e.kind, format!("{e}; the change is not on file, and applies until the daemon ends"))
        })
    }

    /// Acknowledges an alarm, or takes that back.
    pub(crate) async fn acknowledge(&self, id: &str, by: Option<(String, String)>) -> Result<Alarm> {
        self.find(id)?;
        let acknowledged = by.map(|(by, note)| Acknowledged { by, time: Timestamp::now(), note });
        let alarm = self.state().alarms.acknowledge(id, acknowledged);
        self.write_or_say().await?;
        alarm.ok_or_else(|| Error::not_found(format!("alarm {id:?} has ended meanwhile")))
    }

    pub(crate) fn mutes(&self) -> Vec<AlarmMuted> {
        self.state().mutes.clone()
    }

    pub(crate) async fn mute(&self, wanted: AlarmMute, by: String) -> Result<AlarmMuted> {
        let AlarmMute { alarm, rule, vm, for_s } = wanted;
        let until = Timestamp::now() + SignedDuration::from_secs(for_s.cast_signed());
        let muted = {
            let mut state = self.state();
            if state.mutes.len() >= ENTRIES_MAX {
                return Err(Error::refused(format!("there are {ENTRIES_MAX} mutes, the most there can be")));
            }
            let id = state.mutes.iter().map(|mute| mute.id).max().unwrap_or(0) + 1;
            let muted = AlarmMuted { id, alarm, rule, vm, until, by };
            state.mutes.push(muted.clone());
            muted
        };
        self.write_or_say().await?;
        Ok(muted)
    }

    pub(crate) async fn unmute(&self, id: u64) -> Result<AlarmMuted> {
        let removed = {
            let mut state = self.state();
            let at = state.mutes.iter().position(|mute| mute.id == id);
            let at = at.ok_or_else(|| Error::not_found(format!("no mute {id}; see `unstun alarm mutes`")))?;
            state.mutes.remove(at)
        };
        self.write_or_say().await?;
        Ok(removed)
    }

    pub(crate) fn rules(&self) -> Vec<AlarmRuleShown> {
        thresholds::shown(&self.state().thresholds)
    }

    pub(crate) fn thresholds(&self) -> Vec<AlarmThreshold> {
        self.state().thresholds.clone()
    }

    pub(crate) async fn set_threshold(&self, wanted: AlarmThreshold) -> Result<Vec<AlarmRuleShown>> {
        {
            let mut state = self.state();
            if state.thresholds.len() >= ENTRIES_MAX {
                return Err(Error::refused(format!(
                    "there are {ENTRIES_MAX} thresholds, the most there can be"
                )));
            }
            thresholds::set(&mut state.thresholds, wanted);
        }
        self.write_or_say().await?;
        Ok(self.rules())
    }

    /// Sets several thresholds: all of them, or on an error none.
    pub(crate) async fn set_thresholds(&self, wanted: Vec<AlarmThreshold>) -> Result<()> {
        let before = self.thresholds();
        let mut all = before.clone();
        wanted.into_iter().for_each(|one| thresholds::set(&mut all, one));
        if all.len() > ENTRIES_MAX {
            return Err(Error::refused(format!("there are {ENTRIES_MAX} thresholds, the most there can be")));
        }
        self.replace_thresholds(before, all).await
    }

    /// Replaces the thresholds `from`, as long as they are in force; if they cannot be written, they stay in force.
    pub(crate) async fn replace_thresholds(
        &self,
        from: Vec<AlarmThreshold>,
        to: Vec<AlarmThreshold>,
    ) -> Result<()> {
        let swap = |from: &[AlarmThreshold], to: &[AlarmThreshold]| {
            let mut state = self.state();
            let is_same = state.thresholds == from;
            if is_same {
                state.thresholds = to.to_vec();
            }
            is_same
        };
        if from == to {
            return Ok(());
        }
        if !swap(&from, &to) {
            return Err(Error::refused("another client has changed the thresholds meanwhile; try again"));
        }
        let written = self.write().await;
        if written.is_err() {
            swap(&to, &from);
        }
        written
    }

    /// Gives a rule its default again, for all objects.
    pub(crate) async fn reset_rule(&self, rule: AlarmRule) -> Result<Vec<AlarmRuleShown>> {
        self.state().thresholds.retain(|one| one.rule != rule);
        self.write_or_say().await?;
        Ok(self.rules())
    }
}
