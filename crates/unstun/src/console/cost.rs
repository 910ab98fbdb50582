//! The page of what the snapshots of a VM cost.

use api::{Load, SnapshotCost, Store, VmCost};
use axum::extract::{Extension, Path, Query};
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::Deserialize;

use super::page::{age, vm_pages};
use super::request::{PageRequest, parse_vm};
use super::shown::Shown;

/// Times that the page can show, in days.
const DAYS: [i64; 4] = [1, 7, 30, 365];
/// The one that is shown first.
const DAYS_FIRST: i64 = 30;

/// Query of the page.
#[derive(Deserialize)]
pub(super) struct Costs {
    #[serde(default)]
    days: Option<i64>,
}

pub(super) async fn show(
    Extension(Shown { recorder, .. }): Extension<Shown>,
    Path(name): Path<String>,
    Query(Costs { days: asked }): Query<Costs>,
    page: PageRequest,
) -> Response {
    let days = days(asked);
    let body = async {
        let vm = parse_vm(&name)?;
        page.permit("GET /vms/{vm}/cost", Some(&vm))?;
        let until = Timestamp::now();
        let since = until.checked_sub(SignedDuration::from_hours(24 * days)).unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(tables(&recorder.cost(&vm, since, until).await?, days))
    };
    page.answer(&format!("Cost of the snapshots of VM {name}"), body).await
}

/// Returns the days that an address asks for.
fn days(asked: Option<i64>) -> i64 {
    asked.filter(|days| DAYS.contains(days)).unwrap_or(DAYS_FIRST)
}

fn tables(cost: &VmCost, days: i64) -> Markup {
    html! {
        (vm_pages(&cost.vm, "/cost"))
        nav.spans aria-label="Time" {
            @for one in DAYS {
                a href=(format!("?days={one}")) aria-current=[(one == days).then_some("true")] {
                    (one) @if one == 1 { " day" } @else { " days" }
                } " "
            }
        }
        p { (cost.summary()) }
        (table("Times", &["Time"], cost.times().into_iter().map(|(name, load)| (vec![html! { (name) }], load))))
        @if cost.store == Store::Native {
            p.quiet { "Host is the I/O of the whole store that has the VM." }
        }
        h2 { "Snapshots" }
        @if cost.snapshots.is_empty() { p.quiet { "There was no snapshot." } }
        @else {
            p.quiet { "Before and after are the ten minutes before the take, and after the snapshot was gone." }
            (table("Snapshots", &["Snapshot", "Phase"], cost.snapshots.iter().rev().flat_map(rows)))
        }
    }
}

fn rows(snapshot: &SnapshotCost) -> Vec<(Vec<Markup>, &Load)> {
    let head = html! {
        (snapshot.name) " "
        span.quiet { @if let Some(taken) = snapshot.taken { (age(taken)) ", " } (snapshot.fate()) }
    };
    let mut observed = snapshot.observed();
    if observed.is_empty() {
        observed.push(("not recorded", &snapshot.with));
    }
    let first = |at: usize| {
        if at == 0 {
            head.clone()
        } else {
            html! {}
        }
    };
    let row = |(at, (name, load)): (usize, (&str, _))| (vec![first(at), html! { (name) }], load);
    observed.into_iter().enumerate().map(row).collect()
}

/// Returns a table of loads, each with the cells before it.
fn table<'a>(name: &str, first: &[&str], rows: impl Iterator<Item = (Vec<Markup>, &'a Load)>) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(name) {
            table {
                thead { tr {
                    @for title in first { th scope="col" { (title) } }
                    @for title in Load::TITLES { th.number scope="col" { (title) } }
                } }
                tbody {
                    @for (cells, load) in rows {
                        tr {
                            @for cell in cells { td.text { (cell) } }
                            @for text in load.texts() { td.number { (text) } }
                        }
                    }
                }
            }
        }
    }
}
