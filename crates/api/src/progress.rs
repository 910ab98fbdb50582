//! Follows a job to its end, with a bar on a terminal and no output elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::units::{format_bytes, format_rate, format_seconds, format_us};
use crate::{Job, JobState};

/// Interval between two polls: short enough for a moving bar, long enough not to load the daemon.
const POLL: Duration = Duration::from_millis(250);

pub enum Watched {
    /// The job is done, failed or cancelled.
    Ended(Job),
    /// The user pressed Ctrl-C; the job continues.
    Detached(Job),
}

pub async fn watch(client: &Client, mut job: Job) -> Result<Watched> {
    let bar = bar(job.bytes_total.max(1))?;
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    while job.state.is_open() {
        show(&bar, &job);
        tokio::select! {
            _ = &mut interrupted => {
                bar.abandon();
                return Ok(Watched::Detached(job));
            }
            () = tokio::time::sleep(POLL) => {}
        }
        job = client.job_show(job.id).await?;
    }
    show(&bar, &job);
    bar.finish();
    Ok(Watched::Ended(job))
}

/// Returns a progress bar on standard error; it is hidden where that is no terminal.
pub fn bar(bytes_total: u64) -> Result<ProgressBar> {
    // The bar, the percentage and the spaces take 23 of 80 columns.
    let style = ProgressStyle::with_template("{bar:16} {percent:>3}%  {wide_msg}")
        .map_err(|e| Error::failed(format!("progress bar: {e}")))?;
    Ok(ProgressBar::with_draw_target(Some(bytes_total), ProgressDrawTarget::stderr()).with_style(style))
}

fn show(bar: &ProgressBar, job: &Job) {
    // A bar of length 0 would be shown as full; an open job without a total therefore has length 1.
    bar.set_length(if job.state.is_open() { job.bytes_total.max(1) } else { job.bytes_total });
    bar.set_position(job.bytes_done);
    bar.set_message(describe(job));
}

/// Returns a text such as `1.2 GiB of 3 GiB, 180 MiB/s, 10 s left, guest 420 us`.
fn describe(job: &Job) -> String {
    let mut parts = vec![format!("{} of {}", format_bytes(job.bytes_done), format_bytes(job.bytes_total))];
    match job.state {
        JobState::Running => parts.push(format_rate(job.rate_bytes_s)),
        state => parts.push(state.as_str().to_owned()),
    }
    if let Some(eta_s) = job.eta_s.filter(|_| job.state.is_open()) {
        parts.push(format!("{} left", format_seconds(eta_s)));
    }
    if let Some(latency_us) = job.guest_latency_us {
        parts.push(format!("guest {}", format_us(latency_us)));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_bytes_rate_eta_and_guest_latency() {
        let job = Job {
            id: 1,
            operation: crate::Operation::Commit,
            datastore: "main".parse().unwrap(),
            vm: "web".parse().ok(),
            snapshots: vec!["a".into()],
            state: JobState::Running,
            started: "2026-11-20T12:00:00Z".parse().unwrap(),
            ended: None,
            bytes: crate::JobBytes::Moved,
            bytes_done: 1 << 30,
            bytes_total: 3 << 30,
            rate_bytes_s: 180 << 20,
            limit_bytes_s: None,
            eta_s: Some(11),
            guest_latency_us: Some(420),
            defragmented: None,
            error: None,
        };
        assert_eq!(describe(&job), "1 GiB of 3 GiB, 180 MiB/s, 11 s left, guest 420 us");
        let paused = Job { state: JobState::Paused, eta_s: None, guest_latency_us: None, ..job };
        assert_eq!(describe(&paused), "1 GiB of 3 GiB, paused");
    }
}
