//! `unstun job`.

use api::Job;
use api::client::Client;
use api::error::Result;
use api::output::{Output, align_right, table};
use api::units::{format_bytes, format_rate, format_seconds};

use crate::cli::JobCommand;
use crate::command::commit;

pub(super) async fn run(command: &JobCommand, client: &Client, output: Output) -> Result<()> {
    let job = match command {
        JobCommand::List => return output.result(&client.job_list().await?, |jobs| list(jobs)),
        JobCommand::Pause { id } => client.job_pause(*id).await?,
        JobCommand::Resume { id } => client.job_resume(*id).await?,
        JobCommand::Cancel { id } => client.job_cancel(*id).await?,
        JobCommand::Limit { id, rate } => client.job_limit(*id, rate.0).await?,
    };
    output.result(&job, |job| list(std::slice::from_ref(job)))
}

fn list(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "no jobs".to_owned();
    }
    let mut table =
        table(&["job", "operation", "target", "state", "done", "total", "rate", "limit", "time left"]);
    for job in jobs {
        table.add_row([
            job.id.to_string(),
            job.operation.as_str().to_owned(),
            commit::of_job(job),
            job.state.as_str().to_owned(),
            format_bytes(job.bytes_done),
            format_bytes(job.bytes_total),
            format_rate(job.rate_bytes_s),
            job.limit_bytes_s.map_or("none".to_owned(), format_rate),
            job.eta_s.map_or("-".to_owned(), format_seconds),
        ]);
    }
    align_right(&mut table, &[0, 4, 5, 6, 7, 8]);
    let failures: String = jobs
        .iter()
        .filter_map(|job| job.error.as_ref().map(|error| format!("\njob {}: {}", job.id, error.message)))
        .collect();
    format!("{table}{failures}")
}
