//! Forecast of the day on which a datastore is full, from samples of its free space.
//!
//! The growth is the median of the slopes between all pairs of samples (Theil and Sen): a commit that frees much at once, or
//! an import that takes much, changes it little.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use api::Datastore;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::daemon::{CoreHandle, Subject};

/// Seconds between two samples.
const SAMPLE_S: i64 = 1800;
/// Number of samples of a datastore: three days, which a forecast uses.
const SAMPLES_MAX: usize = 3 * 24 * 3600 / SAMPLE_S as usize;
/// Number of samples below which there is no forecast: six hours.
const SAMPLES_MIN: usize = 6 * 3600 / SAMPLE_S as usize;
const FILE_NAME: &str = "alarm-samples";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Sample {
    unix_s: i64,
    free_bytes: u64,
}

/// What is known of the free space of a datastore.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trend {
    /// Seconds since 1970, and the bytes that were free then; the oldest first, of three days at most.
    pub samples: Vec<(i64, u64)>,
    pub free_bytes: u64,
    /// Bytes per second by which the free space shrinks; negative if it grows; None with too few samples.
    pub shrinks_bytes_s: Option<f64>,
    /// Days until nothing is free; None if it does not become fuller, or too little is known.
    pub days_left: Option<f64>,
}

/// Samples of all datastores, the oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Forecasts {
    samples: BTreeMap<String, VecDeque<Sample>>,
    /// Bytes per second by which the free space shrinks, of datastores with enough samples.
    #[serde(skip)]
    shrinks: BTreeMap<String, f64>,
}

impl Forecasts {
    /// Reads the samples. Without them the forecasts begin anew.
    pub(super) async fn read(core: &CoreHandle) -> Forecasts {
        let read = core.ask(Subject::Datastore(None), async |daemon| daemon.own_file(FILE_NAME).await).await;
        let bytes = read.unwrap_or_default();
        let mut forecasts: Forecasts = match bytes.is_empty() {
            true => Forecasts::default(),
            false => serde_json::from_slice(&bytes).unwrap_or_else(|e| {
                warn!(".unstun/{FILE_NAME}: {e}; forecasts begin anew");
                Forecasts::default()
            }),
        };
        forecasts.fit();
        forecasts
    }

    pub(super) fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("samples are JSON")
    }

    pub(super) async fn write(core: &CoreHandle, text: Vec<u8>) {
        let write = async move |daemon: std::rc::Rc<crate::daemon::Daemon>| {
            daemon.replace_own_file(FILE_NAME, &text).await
        };
        if let Err(e) = core.ask(Subject::Datastore(None), write).await {
            warn!(".unstun/{FILE_NAME}: {e}");
        }
    }

    /// Adds samples if it is time. Returns whether it has.
    pub(super) fn add(&mut self, now: Timestamp, datastores: &[Datastore]) -> bool {
        let unix_s = now.as_second();
        let known = |one: &&Datastore| one.hung.is_none() && one.free_bytes.is_some();
        let names: Vec<String> = datastores.iter().map(|one| one.name.to_string()).collect();
        let mut is_changed = false;
        for one in datastores.iter().filter(known) {
            let samples = self.samples.entry(one.name.to_string()).or_default();
            // Samples of a time to come are of a clock that was wrong.
            samples.retain(|sample| sample.unix_s <= unix_s);
            if samples.back().is_some_and(|last| unix_s - last.unix_s < SAMPLE_S) {
                continue;
            }
            samples.push_back(Sample { unix_s, free_bytes: one.free_bytes.unwrap_or(0) });
            let oldest = unix_s - SAMPLE_S * SAMPLES_MAX as i64;
            samples.retain(|sample| sample.unix_s > oldest);
            is_changed = true;
        }
        if is_changed {
            self.samples.retain(|name, _| names.contains(name));
            self.fit();
        }
        is_changed
    }

    /// Returns the samples of a datastore of which so much is free now, and its forecast.
    pub(super) fn trend(&self, datastore: &str, free_bytes: u64) -> Trend {
        let samples = self.samples.get(datastore).into_iter().flatten();
        Trend {
            samples: samples.map(|sample| (sample.unix_s, sample.free_bytes)).collect(),
            free_bytes,
            shrinks_bytes_s: self.shrinks.get(datastore).copied(),
            days_left: self.days_left(datastore, free_bytes),
        }
    }

    fn fit(&mut self) {
        let fitted = self.samples.iter().filter(|(_, samples)| samples.len() >= SAMPLES_MIN);
        self.shrinks = fitted.map(|(name, samples)| (name.clone(), -slope(samples))).collect();
    }

    /// Returns the days until a datastore is full; None if it does not become fuller, or too little is known.
    pub(super) fn days_left(&self, datastore: &str, free_bytes: u64) -> Option<f64> {
        let shrinks = self.shrinks.get(datastore).copied().filter(|&bytes_s| bytes_s > 0.0)?;
        Some(free_bytes as f64 / shrinks / 86_400.0)
    }
}

/// Returns the median slope in bytes per second.
fn slope(samples: &VecDeque<Sample>) -> f64 {
    let mut slopes = Vec::new();
    for (n, a) in samples.iter().enumerate() {
        for b in samples.iter().skip(n + 1).filter(|b| b.unix_s > a.unix_s) {
            slopes.push((b.free_bytes as f64 - a.free_bytes as f64) / (b.unix_s - a.unix_s) as f64);
        }
    }
    let middle = slopes.len() / 2;
    if slopes.is_empty() {
        return 0.0;
    }
    *slopes.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn samples(free: impl Fn(u64) -> u64, count: u64) -> VecDeque<Sample> {
        (0..count).map(|n| Sample { unix_s: n as i64 * SAMPLE_S, free_bytes: free(n) }).collect()
    }

    #[test]
    fn the_growth_survives_a_commit_that_frees_much() {
        let steady = |n: u64| 1000 * GIB - n * GIB;
        let with_commit = |n: u64| steady(n) + if n > 70 { 500 * GIB } else { 0 };
        let expected = -(GIB as f64) / SAMPLE_S as f64;
        for free in [&steady as &dyn Fn(u64) -> u64, &with_commit] {
            let found = slope(&samples(free, 100));
            assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
        }
        let mut forecasts = Forecasts::default();
        forecasts.samples.insert("ds".into(), samples(steady, 100));
        forecasts.fit();
        // 48 GiB a day.
        let days = forecasts.days_left("ds", 480 * GIB).unwrap();
        assert!((days - 10.0).abs() < 0.01, "{days}");
        assert_eq!(forecasts.days_left("other", GIB), None);
    }

    #[test]
    fn little_or_growing_space_gives_no_forecast() {
        let mut forecasts = Forecasts::default();
        forecasts.samples.insert("young".into(), samples(|n| 100 - n, SAMPLES_MIN as u64 - 1));
        forecasts.samples.insert("growing".into(), samples(|n| n * GIB, 50));
        forecasts.samples.insert("still".into(), samples(|_| GIB, 50));
        forecasts.fit();
        for name in ["young", "growing", "still"] {
            assert_eq!(forecasts.days_left(name, GIB), None, "{name}");
        }
    }
}
