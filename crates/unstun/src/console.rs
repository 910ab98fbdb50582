//! The web console: pages that the daemon makes, kept up to date by one small script. Without the script every page can be
//! read, and every form sent. No page loads anything from elsewhere.

mod actions;
mod activity;
mod alarm_rules;
mod alarms;
mod attach;
mod bin;
mod browser;
mod bulk;
mod chart;
mod checks;
mod cost;
mod create;
mod datastores;
mod disks;
mod forecast;
mod jobs;
mod login;
mod loss;
mod overview;
mod page;
mod policies;
mod policy;
mod policy_form;
mod relocate;
mod removal;
mod report_files;
mod reports;
mod request;
mod sent;
mod settings;
mod shown;
mod space;
mod tokens;
mod tree;
mod vm;

pub(crate) use report_files::ReportFolder;
pub(crate) use shown::Shown;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{Stream, stream};

use crate::access::authorize::Access;
use crate::console::browser::{guarded, with_session};

/// Interval at which a page looks for changes.
const TICK: Duration = Duration::from_secs(2);

pub(crate) fn routes(access: &Arc<Access>, shown: Shown) -> Router {
    let session = from_fn_with_state(access.clone(), with_session);
    let inside =
        pages().merge(alarm_pages()).merge(scheduled()).merge(stores()).merge(vms()).route_layer(session);
    let outside = Router::new()
        .route("/login", get(login::show).post(login::with_token))
        .route("/console.css", get(|| async { file("text/css", include_str!("console/style.css")) }))
        .route("/console.svg", get(|| async { file("image/svg+xml", include_str!("console/icon.svg")) }))
        .route("/console.js", get(|| async { file("text/javascript", include_str!("console/script.js")) }));
    inside.merge(outside).with_state(access.clone()).route_layer(from_fn(guarded)).layer(Extension(shown))
}

fn pages() -> Router<Arc<Access>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/activity", get(activity::show))
        .route("/bin", get(bin::show))
        .route("/bin/restore", post(bin::restore))
        .route("/bin/empty/preview", post(bin::preview))
        .route("/bin/empty", post(bin::empty))
        .route("/create", get(create::show).post(create::create))
        .route("/import", post(create::import))
        .route("/bulk/take", post(bulk::take))
        .route("/bulk/policy", post(bulk::policy))
        .route("/bulk/tag", post(bulk::tag))
        .route("/bulk/untag", post(bulk::untag))
        .route("/access", get(tokens::show))
        .route("/access/create", post(tokens::create))
        .route("/access/{name}/revoke", post(tokens::revoke))
        .route("/reports", get(reports::show))
        .route("/reports/{name}", get(reports::file))
        .route("/live", get(live))
        .route("/logout", post(login::log_out))
        .route("/jobs/{id}", post(actions::job))
        .route("/jobs/{id}/limit", post(actions::limit_job))
}

fn scheduled() -> Router<Arc<Access>> {
    Router::new()
        .route("/policies", get(policies::show))
        .route("/policies/create", get(policy::show_new).post(policies::create))
        .route("/policies/create-shown", post(policy::create_shown))
        .route("/policies/preview", post(policy::preview))
        .route("/policies/{name}/settings", get(policy::show))
        .route("/policies/{name}/set", post(policy::set))
        .route("/policies/{name}/remove", post(policy::remove))
        .route("/policies/{name}/apply", post(policies::apply))
        .route("/policies/{name}/switch", post(policies::switch))
}

fn alarm_pages() -> Router<Arc<Access>> {
    Router::new()
        .route("/alarms", get(alarms::show))
        .route("/alarms/{id}/acknowledge", post(alarms::acknowledge))
        .route("/alarms/{id}/unacknowledge", post(alarms::unacknowledge))
        .route("/alarms/{id}/mute", post(alarms::mute))
        .route("/alarms/mutes/{id}/end", post(alarms::unmute))
        .route("/alarms/rules", get(alarm_rules::show).post(alarm_rules::set))
        .route("/alarms/rules/mute", post(alarm_rules::mute))
        .route("/alarms/rules/{rule}/reset", post(alarm_rules::reset))
        .route("/alarms/channels/test", post(alarm_rules::test))
}

fn stores() -> Router<Arc<Access>> {
    Router::new()
        .route("/datastores", get(datastores::show))
        .route("/datastores/add", post(datastores::add))
        .route("/datastores/{name}/remove/preview", post(datastores::preview))
        .route("/datastores/{name}/remove", post(datastores::remove))
        .route("/datastores/{name}/check", post(checks::check))
        .route("/datastores/{name}/scrub", get(checks::scrubbed).post(checks::scrub))
        .route("/repair", get(checks::broken))
}

fn vms() -> Router<Arc<Access>> {
    Router::new()
        .route("/vms/{vm}", get(vm::show))
        .route("/vms/{vm}/cost", get(cost::show))
        .route("/vms/{vm}/take", post(actions::take))
        .route("/vms/{vm}/rename-snapshot", post(actions::rename))
        .route("/vms/{vm}/clone", post(actions::clone))
        .route("/vms/{vm}/preview", post(loss::preview))
        .route("/vms/{vm}/confirm", post(loss::confirm))
        .route("/vms/{vm}/attach", get(attach::show))
        .route("/vms/{vm}/space", get(space::show))
        .route("/vms/{vm}/move/preview", post(relocate::preview_move))
        .route("/vms/{vm}/move", post(relocate::start_move))
        .route("/vms/{vm}/defragment", post(relocate::defragment))
        .route("/vms/{vm}/close", post(removal::close))
        .route("/vms/{vm}/open", post(removal::open))
        .route("/vms/{vm}/remove/preview", post(removal::preview))
        .route("/vms/{vm}/remove", post(removal::remove))
        .merge(vm_settings())
}

fn vm_settings() -> Router<Arc<Access>> {
    Router::new()
        .route("/vms/{vm}/settings", get(settings::show))
        .route("/vms/{vm}/rename", post(settings::rename))
        .route("/vms/{vm}/labels", post(settings::labels))
        .route("/vms/{vm}/limits", post(settings::limits))
        .route("/vms/{vm}/guest", post(settings::guest))
        .route("/vms/{vm}/shared-writers", post(settings::shared_writers))
        .route("/vms/{vm}/snapshot-dir", post(settings::snapshot_dir))
        .route("/vms/{vm}/disks/add", post(disks::add))
        .route("/vms/{vm}/disks/{number}/grow", post(disks::grow))
        .route("/vms/{vm}/disks/{number}/mode", post(disks::mode))
        .route("/vms/{vm}/disks/{number}/remove", post(disks::remove))
}

/// A file of this version of the program: a browser asks again after an hour.
fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "private, max-age=3600")], text).into_response()
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
