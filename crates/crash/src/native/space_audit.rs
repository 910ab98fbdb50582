//! Audit of space: every block that the trees and the catalogue use is marked once, and no other is.

use std::collections::BTreeSet;

use engine::native::check::Report;

use super::harness::{Harness, MACHINE, SNAPSHOT};

/// Virtual time within which the space of dropped states must be free.
const RELEASED_WITHIN_US: u64 = 10_000_000;
const LOOK_US: u64 = 1000;

pub(super) fn judge(report: &Report, when: &str) -> Result<(), String> {
    match report.findings.first() {
        None if report.is_sound() => Ok(()),
        None => Err(format!("check {when}: {} findings", report.more)),
        Some(first) => {
            let more = report.findings.len() as u64 + report.more - 1;
            Err(format!("check {when}: {:?}: {}, and {more} more", first.fault, first.error))
        }
    }
}

/// Checks that the store has the states that something names, and no others.
pub(super) fn judge_states(report: &Report, named: BTreeSet<u64>, when: &str) -> Result<(), String> {
    match named == report.states {
        true => Ok(()),
        false => Err(format!("check {when}: states {:?}, named are {named:?}", report.states)),
    }
}

impl Harness {
    /// Checks the state of the last checkpoint, whatever work is under way.
    pub async fn check_committed(&self, when: &str) -> Result<(), String> {
        let report = self.store.check_committed().await.map_err(|e| format!("check {when}: {e}"))?;
        judge(&report, when)
    }

    /// Checks everything, which is merged first, while no other work is under way. The store must have the states that
    /// machines and snapshots name, and no others.
    pub async fn check_all(&self, when: &str) -> Result<(), String> {
        let report = self.store.check().await.map_err(|e| format!("check {when}: {e}"))?;
        if let Some(e) = &report.behind {
            return Err(format!("check {when}: {e}"));
        }
        judge(&report, when)?;
        let named = [MACHINE, SNAPSHOT].into_iter().flat_map(|kind| self.items(kind).into_values().flatten());
        judge_states(&report, named.collect(), when)
    }

    /// Waits until nothing dropped is left and its space is free.
    pub async fn wait_for_space(&self) -> Result<(), String> {
        match self.wait_for_hidden().await?.as_slice() {
            [] => Ok(()),
            hidden => Err(format!("hidden states are left: {hidden:?}")),
        }
    }

    /// Waits until dropped states that no other state needs are free. Returns the dropped states that several others
    /// need.
    pub async fn wait_for_hidden(&self) -> Result<Vec<u64>, String> {
        let mut waited_us = 0;
        loop {
            let (dropped, space) = (self.store.dropped_nodes(), self.store.store_usage());
            if self.store.left_to_reclaim(&dropped).is_empty() && space.waiting == 0 {
                return Ok(dropped);
            }
            if let Some(e) = self.store.broken() {
                return Err(format!("while space is given back: {e}"));
            }
            if waited_us > RELEASED_WITHIN_US {
                return Err(format!("space is not freed: dropped {dropped:?}, {space:?}"));
            }
            self.env.sleep_us(LOOK_US).await;
            waited_us += LOOK_US;
        }
    }
}
