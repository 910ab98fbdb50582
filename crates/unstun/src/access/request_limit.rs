//! Limits on requests: those of a token over TCP, and those that are refused.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::error::{Error, ErrorKind, Result};

/// Requests per second of one token, and how many may come at once.
const REQUESTS_S: f64 = 100.0;
const REQUESTS_BURST: f64 = 400.0;
/// Refused requests per second of one caller, or of one address, and how many may come at once. The limit keeps the log and
/// the audit short; a secret of 256 bits needs no protection by a limit.
const REFUSED_S: f64 = 1.0;
const REFUSED_BURST: f64 = 20.0;
/// Maximum number of callers whose requests are counted. A caller that is forgotten begins with a full burst.
const CALLERS_MAX: usize = 4096;

/// What one caller may still send.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// Counts requests by caller.
#[derive(Default)]
pub(crate) struct RequestLimit(Mutex<BTreeMap<String, Bucket>>);

impl RequestLimit {
    /// Counts a request of an identified caller, or refuses it.
    pub(crate) fn admit(&self, who: &str, now: Instant) -> Result<()> {
        self.take(who.to_owned(), (REQUESTS_S, REQUESTS_BURST), now)
            .map_err(|wait| too_many(who, REQUESTS_S, wait))
    }

    /// Counts a refused request, or reports that there are too many.
    pub(crate) fn admit_refused(&self, who: &str, now: Instant) -> Result<()> {
        self.take(format!("refused {who}"), (REFUSED_S, REFUSED_BURST), now)
            .map_err(|wait| too_many(who, REFUSED_S, wait))
    }

    /// Takes one request, or returns the time until there is one.
    fn take(
        &self,
        key: String,
        (rate, burst): (f64, f64),
        now: Instant,
    ) -> std::result::Result<(), Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CALLERS_MAX && !all.contains_key(&key) {
            all.retain(|_, bucket| now.duration_since(bucket.at) < Duration::from_secs(10));
            if all.len() >= CALLERS_MAX {
                all.clear();
            }
        }
        let bucket = all.entry(key).or_insert(Bucket { left: burst, at: now });
        let passed_s = now.saturating_duration_since(bucket.at).as_secs_f64();
        *bucket = Bucket { left: (bucket.left + passed_s * rate).min(burst), at: now };
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / rate));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

fn too_many(who: &str, rate: f64, wait: Duration) -> Error {
    let message = format!(
        "{who} has sent too many requests: at most {rate} per second; try again in {:.1} s",
        wait.as_secs_f64()
    );
    Error::new(ErrorKind::TooMany, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_admitted_and_then_the_rate() {
        let (limit, start) = (RequestLimit::default(), Instant::now());
        let admitted = (0..1000).filter(|_| limit.admit("token ci", start).is_ok()).count();
        assert_eq!(admitted, REQUESTS_BURST as usize);
        assert!(limit.admit("token other", start).is_ok(), "each caller for itself");
        let later = start + Duration::from_secs(1);
        let admitted = (0..1000).filter(|_| limit.admit("token ci", later).is_ok()).count();
        assert_eq!(admitted, REQUESTS_S as usize);
        let error = limit.admit("token ci", later).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooMany);
    }

    #[test]
    fn many_addresses_use_bounded_memory() {
        let (limit, now) = (RequestLimit::default(), Instant::now());
        for n in 0..3 * CALLERS_MAX {
            limit.admit_refused(&n.to_string(), now).unwrap();
        }
        assert!(limit.0.lock().unwrap().len() <= CALLERS_MAX);
    }
}
