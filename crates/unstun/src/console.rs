//! The web console: pages that the daemon makes, kept up to date by one small script. Without the script every page can be
//! read, and every form sent. No page loads anything from elsewhere.

mod actions;
mod alarms;
mod bin;
mod browser;
mod chart;
mod cost;
mod create;
mod login;
mod overview;
mod page;
mod policies;
mod shown;
mod tokens;
mod tree;
mod vm;

pub(crate) use shown::Shown;

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Error, Result};
use api::name::VmName;
use axum::Router;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{Stream, stream};
use jiff::{SignedDuration, Timestamp};
use maud::html;
use serde::Deserialize;

use crate::access::authorize::Access;
use crate::access::sessions::Notice;
use crate::alarms::Alarms;
use crate::console::browser::{Browser, guarded, with_session};
use crate::console::chart::ChartSpan;
use crate::console::overview::Filter;
use crate::console::page::Page;
use crate::console::vm::Known;
use crate::daemon::{Daemon, Subject};
use crate::recorder::Recorder;

/// Interval at which a page looks for changes.
const TICK: Duration = Duration::from_secs(2);
/// Number of events of the activity page.
const EVENTS_SHOWN: usize = 200;

pub(crate) fn routes(access: &Arc<Access>, shown: Shown) -> Router {
    let inside = Router::new()
        .route("/", get(overview))
        .route("/activity", get(activity))
        .route("/bin", get(bin_page))
        .route("/bin/restore", post(bin::restore))
        .route("/alarms", get(alarms_page))
        .route("/alarms/{id}/acknowledge", post(alarms::acknowledge))
        .route("/alarms/{id}/mute", post(alarms::mute))
        .route("/create", post(create::create))
        .route("/policies", get(policies_page))
        .route("/policies/create", post(policies::create))
        .route("/policies/{name}/apply", post(policies::apply))
        .route("/policies/{name}/switch", post(policies::switch))
        .route("/access", get(access_page))
        .route("/access/create", post(tokens::create))
        .route("/access/{name}/revoke", post(tokens::revoke))
        .route("/live", get(live))
        .route("/logout", post(login::log_out))
        .route("/jobs/{id}", post(actions::job))
        .route("/vms/{vm}", get(vm_page))
        .route("/vms/{vm}/cost", get(cost_page))
        .route("/vms/{vm}/take", post(actions::take))
        .route("/vms/{vm}/clone", post(actions::clone))
        .route("/vms/{vm}/preview", post(actions::preview))
        .route("/vms/{vm}/confirm", post(actions::confirm))
        .route_layer(from_fn_with_state(access.clone(), with_session));
    let outside = Router::new()
        .route("/login", get(login::show).post(login::with_token))
        .route("/console.css", get(|| async { file("text/css", include_str!("console/style.css")) }))
        .route("/console.svg", get(|| async { file("image/svg+xml", include_str!("console/icon.svg")) }))
        .route("/console.js", get(|| async { file("text/javascript", include_str!("console/script.js")) }));
    inside.merge(outside).with_state(access.clone()).route_layer(from_fn(guarded)).layer(Extension(shown))
}

/// A file of this version of the program: a browser asks again after an hour.
fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "private, max-age=3600")], text).into_response()
}

async fn overview(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Query(filter): Query<Filter>,
) -> Response {
    let known = async {
        let status = async |daemon: Rc<Daemon>| {
            Ok((daemon.status().await?, daemon.vm_list().await?, daemon.job_list().await))
        };
        access.core.ask(Subject::None, status).await
    };
    let (status, mut vms, mut jobs) = match known.await {
        Ok(known) => known,
        Err(error) => return fault(&browser, "Overview", &error),
    };
    let caller = &browser.session.caller;
    vms.retain(|vm| caller.reaches(vm.name.as_str()));
    jobs.retain(|job| caller.reaches_job(job));
    // The figures of datastores are about more than the caller's VMs.
    let status = (!caller.is_limited()).then_some(&status);
    let body = overview::overview(status, &vms, &jobs, &filter, &browser.session);
    show(&access, &browser, "Overview", &body)
}

async fn vm_page(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Extension(Shown { recorder, .. }): Extension<Shown>,
    Extension(all): Extension<Arc<Alarms>>,
    Path(name): Path<String>,
    Query(Charts { span }): Query<Charts>,
) -> Response {
    match know(&access, &browser, &name).await {
        Ok(known) => {
            let charts = charts(&recorder, &known, ChartSpan::of(span.as_deref())).await;
            let mut lasting = all.list(false);
            lasting.retain(|alarm| alarm.vm.as_ref() == Some(&known.vm.name));
            let body = vm::page(&known, &lasting, &charts, &browser.session);
            show(&access, &browser, &format!("VM {}", known.vm.name), &body)
        }
        Err(error) => fault(&browser, &format!("VM {name}"), &error),
    }
}

/// Query of a VM's page.
#[derive(Deserialize)]
struct Charts {
    span: Option<String>,
}

async fn charts(recorder: &Recorder, known: &Known, span: ChartSpan) -> maud::Markup {
    let until = Timestamp::now();
    let from = until.checked_sub(SignedDuration::from_secs(span.length_s)).unwrap_or(Timestamp::UNIX_EPOCH);
    match recorder.recorded(&known.vm.name, from, until, span.step_s).await {
        Ok(recorded) => chart::charts(&recorded, span, until.as_millisecond(), &known.events),
        Err(e) => html! { p.quiet { (e.message) } },
    }
}

/// Query of the page of costs.
#[derive(Deserialize)]
struct Costs {
    #[serde(default)]
    days: Option<i64>,
}

async fn cost_page(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Extension(Shown { recorder, .. }): Extension<Shown>,
    Path(name): Path<String>,
    Query(Costs { days }): Query<Costs>,
) -> Response {
    let title = format!("Cost of the snapshots of VM {name}");
    let days = cost::days(days);
    let known = async {
        let vm: VmName = name.parse().map_err(Error::invalid)?;
        browser.session.caller.check(&vm)?;
        let until = Timestamp::now();
        let since = until.checked_sub(SignedDuration::from_hours(24 * days)).unwrap_or(Timestamp::UNIX_EPOCH);
        recorder.cost(&vm, since, until).await
    };
    match known.await {
        Ok(cost) => show(&access, &browser, &title, &cost::page(&cost, days)),
        Err(error) => fault(&browser, &title, &error),
    }
}

async fn know(access: &Access, browser: &Browser, name: &str) -> Result<Known> {
    let vm: VmName = name.parse().map_err(Error::invalid)?;
    browser.session.caller.check(&vm)?;
    let subject = Subject::Vm(vm.clone());
    let look = async move |daemon: Rc<Daemon>| {
        let (shown, tree) = (daemon.vm_show(&vm).await?, daemon.snapshot_tree(&vm).await?);
        let (events, mut jobs) = (daemon.events(&vm)?, daemon.job_list().await);
        jobs.retain(|job| job.vm.as_ref() == Some(&vm));
        Ok(Known { vm: shown, tree, events, jobs })
    };
    access.core.ask(subject, look).await
}

/// The events of all VMs, the newest first.
async fn activity(State(access): State<Arc<Access>>, Extension(browser): Extension<Browser>) -> Response {
    let look = async |daemon: Rc<Daemon>| Ok(daemon.last_events(Timestamp::UNIX_EPOCH, EVENTS_SHOWN).await);
    let mut events = match access.core.ask(Subject::None, look).await {
        Ok(events) => events,
        Err(error) => return fault(&browser, "Activity", &error),
    };
    events.retain(|event| browser.session.caller.reaches(event.vm.as_str()));
    show(&access, &browser, "Activity", &vm::event_table(events.iter()))
}

async fn bin_page(State(access): State<Arc<Access>>, Extension(browser): Extension<Browser>) -> Response {
    let look = async |daemon: Rc<Daemon>| daemon.bin_list(None).await;
    let mut entries = match access.core.ask(Subject::None, look).await {
        Ok(entries) => entries,
        Err(error) => return fault(&browser, "Bin", &error),
    };
    entries.retain(|entry| browser.session.caller.reaches(entry.vm.as_str()));
    show(&access, &browser, "Bin", &bin::page(&entries, &browser.session))
}

async fn alarms_page(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
    Extension(all): Extension<Arc<Alarms>>,
) -> Response {
    let caller = &browser.session.caller;
    let mut found = all.list(true);
    found.retain(|alarm| caller.reaches_alarm(alarm));
    let mutes = if caller.is_limited() { Vec::new() } else { all.mutes() };
    show(&access, &browser, "Alarms", &alarms::page(&found, &mutes, &browser.session))
}

async fn policies_page(
    State(access): State<Arc<Access>>,
    Extension(browser): Extension<Browser>,
) -> Response {
    let look = async |daemon: Rc<Daemon>| daemon.policy_list().await;
    let known = match browser.session.caller.refuse_limited("policy list") {
        Ok(()) => access.core.ask(Subject::None, look).await,
        Err(error) => Err(error),
    };
    match known {
        Ok(all) => show(&access, &browser, "Policies", &policies::page(&all, &browser.session)),
        Err(error) => fault(&browser, "Policies", &error),
    }
}

async fn access_page(State(access): State<Arc<Access>>, Extension(browser): Extension<Browser>) -> Response {
    match tokens::known(&access, &browser.session).await {
        Ok((all, entries)) => {
            show(&access, &browser, "Access", &tokens::page(&all, &entries, &browser.session))
        }
        Err(error) => fault(&browser, "Access", &error),
    }
}

fn show(access: &Access, browser: &Browser, title: &str, body: &maud::Markup) -> Response {
    // A refresh keeps the notice that the page has.
    let notice = if browser.is_refresh { None } else { access.sessions.take_notice(&browser.secret) };
    let page = Page { title, browser, is_live: true, notice: notice.as_ref() };
    page.with(body).into_response()
}

fn fault(browser: &Browser, title: &str, error: &Error) -> Response {
    let status = StatusCode::from_u16(error.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let notice = Notice::Fault(error.message.clone());
    let page = Page { title, browser, is_live: false, notice: Some(&notice) };
    let body = html! { p { a href="/" { "To the overview" } } };
    (status, page.with(&body)).into_response()
}

/// A stream of ticks, at which a page is fetched again. It ends with the daemon.
async fn live(
    Extension(Shown { ends, .. }): Extension<Shown>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream::unfold(ends, async |mut ends| {
        tokio::select! {
            () = tokio::time::sleep(TICK) => Some((Ok(Event::default().event("tick").data("look")), ends)),
            _ = ends.changed() => None,
        }
    }))
}
