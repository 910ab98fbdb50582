//! The reports of `unstun lab` in a folder of the host: a list, and the files themselves.

use api::Role;
use api::error::{Error, Result};
use api::listen::escape;
use api::units::format_bytes;
use axum::body::Body;
use axum::extract::{Extension, Path};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::page::age;
use super::report_files::{Kind, Listed, Opened, ReportFolder};
use super::request::PageRequest;
use super::shown::Shown;

/// A report is a file of others, and none of the console's pages: it has styles and drawings in it, runs no script, sends no
/// form, loads nothing, and is of no origin, so that it cannot read the console's pages either.
const POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; \
                      frame-ancestors 'none'; base-uri 'none'";
const WORKBOOK: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

/// Reports may be about any VM.
fn permit(page: &PageRequest) -> Result<()> {
    let caller = &page.session().caller;
    caller.require("lab report", Role::Viewer)?;
    caller.refuse_limited("lab report")
}

pub(super) async fn show(Extension(shown): Extension<Shown>, page: PageRequest) -> Response {
    let body = async {
        permit(&page)?;
        match &shown.reports {
            None => Ok(without_folder()),
            Some(folder) => Ok(list(folder, &folder.list().await?)),
        }
    };
    match body.await {
        Ok(body) => page.still("Reports", None, &body),
        Err(error) => page.fault("Reports", &error),
    }
}

fn without_folder() -> Markup {
    html! {
        p { "The daemon was started without a folder of reports. With one, this page lists them: " code { "unstun up --lab-reports DIR" } }
        (how_to_write())
    }
}

fn how_to_write() -> Markup {
    html! { p.quiet { code { "unstun lab report --vm VM --since 24h -o VM.html" } ", run in that folder, writes a report of what the disks of a VM did." } }
}

fn list(folder: &ReportFolder, listed: &Listed) -> Markup {
    let path = folder.path().display();
    html! {
        p.quiet { "Reports of " code { "unstun lab" } " in " code { (path) } " on the daemon's host." }
        @if listed.reports.is_empty() { p { "There is no report yet." } (how_to_write()) }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Reports" {
                table {
                    thead { tr {
                        th scope="col" { "Report" } th scope="col" { "Kind" } th.number scope="col" { "Size" } th scope="col" { "Changed" }
                    } }
                    tbody {
                        @for one in &listed.reports {
                            tr {
                                th.text scope="row" { a href=(format!("/reports/{}", escape(&one.name))) { (one.name) } }
                                td { @match Kind::of(&one.name) { Some(Kind::Workbook) => "workbook", _ => "page" } }
                                td.number { (format_bytes(one.size_bytes)) }
                                td { (age(one.changed)) }
                            }
                        }
                    }
                }
            }
            @if listed.more > 0 { p { (listed.more) " older reports are not listed." } }
        }
    }
}

/// Sends a report: a page is shown, and a workbook is saved.
pub(super) async fn file(
    Extension(shown): Extension<Shown>,
    Path(name): Path<String>,
    page: PageRequest,
) -> Response {
    let opened = async {
        permit(&page)?;
        let without = || {
            Error::not_found(
                "the daemon was started without a folder of reports (`unstun up --lab-reports DIR`)",
            )
        };
        let folder = shown.reports.as_ref().ok_or_else(without)?;
        Ok::<_, Error>((folder, folder.open(&name).await?))
    };
    match opened.await {
        Ok((folder, report)) => content(folder, report),
        Err(error) => page.fault("Report", &error),
    }
}

fn content(folder: &ReportFolder, report: Opened) -> Response {
    let (kind, shown) = match report.kind {
        Kind::Page => ("text/html; charset=utf-8", "inline"),
        Kind::Workbook => (WORKBOOK, "attachment"),
    };
    let headers = [
        (CONTENT_TYPE, kind.to_owned()),
        (CONTENT_DISPOSITION, shown.to_owned()),
        (CONTENT_SECURITY_POLICY, POLICY.to_owned()),
        (CONTENT_LENGTH, report.size_bytes.to_string()),
    ];
    (headers, Body::from_stream(folder.content(report))).into_response()
}
