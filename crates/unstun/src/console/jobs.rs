//! Jobs, with the forms that pause, limit and cancel them.

use api::Job;
use api::units::{format_bytes, format_rate, format_seconds, format_us};
use maud::{Markup, html};

use super::page::form_key;
use super::request::may;
use crate::access::sessions::Session;

pub(super) fn job_table(jobs: &[&Job], session: &Session) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Jobs" {
            table {
                thead { tr {
                    th.number scope="col" { "Job" } th scope="col" { "Operation" } th scope="col" { "VM" }
                    th scope="col" { "State" } th scope="col" { "Done" } th.number scope="col" { "Rate" }
                    th.number scope="col" { "Time left" } th.number scope="col" { "Guest latency" } th scope="col" { "Change" }
                } }
                tbody {
                    @for job in jobs {
                        tr {
                            td.number { (job.id) }
                            td { (job.operation.as_str()) " " (job.snapshots.join(", ")) }
                            td { @if let Some(vm) = &job.vm { a href=(format!("/vms/{vm}")) { (vm) } } }
                            td { (job.state.as_str()) }
                            td {
                                progress max=(job.bytes_total.max(1)) value=(job.bytes_done)
                                    aria-label=(format!("Progress of job {}", job.id)) {}
                                " " (format_bytes(job.bytes_done)) " of " (format_bytes(job.bytes_total))
                            }
                            td.number { (format_rate(job.rate_bytes_s)) }
                            td.number { (job.eta_s.map_or("-".to_owned(), format_seconds)) }
                            td.number { (job.guest_latency_us.map_or("-".to_owned(), format_us)) }
                            td { @if job.state.is_open() { (job_actions(job, session)) } }
                        }
                    }
                }
            }
        }
    }
}

fn job_actions(job: &Job, session: &Session) -> Markup {
    let paused = job.state == api::JobState::Paused;
    let verbs = if paused { ["resume", "cancel"] } else { ["pause", "cancel"] };
    let verbs = verbs.into_iter().filter(|verb| may(session, &format!("/jobs/{{id}}/{verb}")));
    html! {
        form method="post" action=(format!("/jobs/{}", job.id)) {
            (form_key(session))
            @for verb in verbs {
                button.plain name="verb" value=(verb) aria-label=(format!("{verb} job {}", job.id)) { (verb) } " "
            }
        }
        @if may(session, "PUT /jobs/{id}/limit") {
            details {
                summary aria-label=(format!("Limit job {}", job.id)) { "Limit" }
                form.row method="post" action=(format!("/jobs/{}/limit", job.id)) {
                    (form_key(session))
                    label { "Rate, such as 200M, or none" input name="rate" required maxlength="20" size="6"; }
                    button.plain { "Limit" }
                }
            }
        }
    }
}
