//! Space is exact: every block that the trees and the catalogue use is marked once, and no other is.

use std::collections::BTreeSet;

use engine::native::check::Report;

use super::harness::{Harness, MACHINE, SNAPSHOT};

/// Until when freed space must be free, in virtual time.
const RELEASED_WITHIN_US: u64 = 10_000_000;
const LOOK_US: u64 = 1000;

pub fn judge(report: &Report, when: &str) -> Result<(), String> {
    match report.findings.first() {
        None if report.is_sound() => Ok(()),
        None => Err(format!("check {when}: {} findings", report.more)),
        Some(first) => {
            let more = report.findings.len() as u64 + report.more - 1;
            Err(format!("check {when}: {:?}: {}, and {more} more", first.fault, first.error))
        }
    }
}

impl Harness {
    /// The state of the last checkpoint, whatever goes on meanwhile.
    pub async fn check_committed(&self, when: &str) -> Result<(), String> {
        let report = self.store.check_committed().await.map_err(|e| format!("check {when}: {e}"))?;
        judge(&report, when)
    }

    /// Everything, merged before. With nobody at work: there are the states that somebody names, and no other.
    pub async fn check_all(&self, when: &str) -> Result<(), String> {
        let report = self.store.check().await.map_err(|e| format!("check {when}: {e}"))?;
        if let Some(e) = &report.behind {
            return Err(format!("check {when}: {e}"));
        }
        judge(&report, when)?;
        let mut named = BTreeSet::new();
        for kind in [MACHINE, SNAPSHOT] {
            named.extend(self.items(kind).await.into_values().flatten());
        }
        match named == report.states {
            true => Ok(()),
            false => Err(format!("check {when}: states {:?}, named are {named:?}", report.states)),
        }
    }

    /// Nothing dropped is left, and what it held is free.
    pub async fn wait_for_space(&self) -> Result<(), String> {
        match self.wait_for_hidden().await?.as_slice() {
            [] => Ok(()),
            hidden => Err(format!("hidden states are left: {hidden:?}")),
        }
    }

    /// What is dropped and nobody needs is free. Answers the states that several others rest on.
    pub async fn wait_for_hidden(&self) -> Result<Vec<u64>, String> {
        let mut waited_us = 0;
        loop {
            let (dropped, space) = (self.store.dropped_nodes(), self.store.store_use());
            if self.store.left_to_reclaim(&dropped).is_empty() && space.waiting == 0 {
                return Ok(dropped);
            }
            if let Some(e) = self.store.broken() {
                return Err(format!("while space is given back: {e}"));
            }
            if waited_us > RELEASED_WITHIN_US {
                return Err(format!("space does not come back: dropped {dropped:?}, {space:?}"));
            }
            self.env.sleep_us(LOOK_US).await;
            waited_us += LOOK_US;
        }
    }
}
