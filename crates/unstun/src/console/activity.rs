//! The events of all VMs, the newest first.

use std::collections::BTreeSet;
use std::rc::Rc;

use api::Event;
use api::name::VmName;
use api::units::format_us;
use axum::response::Response;
use jiff::Timestamp;
use maud::{Markup, html};

use super::page::age;
use super::request::PageRequest;
use crate::daemon::{Daemon, Subject};

/// Number of events of the page.
const EVENTS_SHOWN: usize = 200;

pub(super) async fn show(page: PageRequest) -> Response {
    let body = async {
        let look = async |daemon: Rc<Daemon>| {
            let events = daemon.last_events(Timestamp::UNIX_EPOCH, EVENTS_SHOWN).await;
            let known: BTreeSet<_> = events.iter().map(|event| event.vm.clone()).collect();
            Ok((events, known.into_iter().filter(|vm| daemon.is_taken(vm.as_str())).collect::<BTreeSet<_>>()))
        };
        let (mut events, known) = page.ask(Subject::None, look).await?;
        events.retain(|event| page.session().caller.reaches(event.vm.as_str()));
        Ok(event_table(events.iter(), |vm| known.contains(vm)))
    };
    page.answer("Activity", body).await
}

/// Returns a table of events. A VM that does not exist under the name of its time has no link.
pub(super) fn event_table<'a>(
    events: impl Iterator<Item = &'a Event>,
    exists: impl Fn(&VmName) -> bool,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Events" {
            table {
                thead { tr {
                    th scope="col" { "When" } th scope="col" { "VM" } th scope="col" { "Event" }
                    th scope="col" { "Snapshot" } th.number scope="col" { "Stun" } th scope="col" { "Message" }
                } }
                tbody {
                    @for event in events {
                        tr {
                            td { (age(event.time)) }
                            td {
                                @if exists(&event.vm) { a href=(format!("/vms/{}", event.vm)) { (event.vm) } }
                                @else { (event.vm) }
                            }
                            td { (event.operation.as_str()) }
                            td { (event.snapshot.as_deref().unwrap_or("")) }
                            td.number { @if event.stun_us > 0 { (format_us(event.stun_us)) } }
                            td.text { (event.message.as_deref().unwrap_or("")) }
                        }
                    }
                }
            }
        }
    }
}
