//! The lines that give the disks of a VM to its hypervisor, as `unstun attach` prints them.

use api::error::Error;
use api::{AttachTo, AttachVia};
use axum::extract::{Path, Query};
use axum::response::Response;
use clap::ValueEnum;
use maud::{Markup, html};
use serde::Deserialize;

use super::page::{shell, vm_pages};
use super::request::{PageRequest, parse_vm};
use crate::command::attach;
use crate::daemon::Subject;

/// Query of the page.
#[derive(Deserialize)]
pub(super) struct Choice {
    #[serde(default, rename = "as")]
    to: Option<String>,
    #[serde(default)]
    via: Option<String>,
}

pub(super) async fn show(
    Path(name): Path<String>,
    Query(choice): Query<Choice>,
    page: PageRequest,
) -> Response {
    let to = chosen(choice.to.as_deref(), AttachTo::Qemu);
    let via = chosen(choice.via.as_deref(), AttachVia::Nbd);
    let body = async {
        let vm = parse_vm(&name)?;
        page.permit("GET /vms/{vm}", Some(&vm))?;
        let subject = Subject::Vm(vm.clone());
        let shown = page.ask(subject, async move |daemon| daemon.vm_show(&vm).await).await?;
        let pages = vm_pages(&shown.name, "/attach");
        // It looks at the daemon's sockets and at the names of users.
        let lines = tokio::task::spawn_blocking(move || attach::lines(shown, to, via)).await;
        let lines = lines.map_err(|e| Error::failed(format!("making the lines: {e}")))?;
        Ok(html! {
            (pages)
            (choices("Hypervisor", AttachTo::value_variants(), to, |one| format!("?as={}&via={}", word(one), word(via))))
            (choices("Protocol", AttachVia::value_variants(), via, |one| format!("?as={}&via={}", word(to), word(one))))
            @match lines {
                Ok(lines) => {
                    (shell("Lines for the hypervisor", &html! { code { (lines.snippet.trim_end()) } }))
                    @if !lines.access.is_empty() { p { "On the daemon's host:" } (shell("Lines that give access", &html! { code { (lines.access.join("\n")) } })) }
                },
                Err(error) => p.notice { (error.message) },
            }
        })
    };
    page.answer(&format!("Attach VM {name}"), body).await
}

fn chosen<T: ValueEnum>(text: Option<&str>, default: T) -> T {
    text.and_then(|text| T::from_str(text, false).ok()).unwrap_or(default)
}

/// Returns the word of a choice on the command line.
fn word<T: ValueEnum>(choice: T) -> String {
    choice.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn choices<T: ValueEnum + Copy + PartialEq>(
    title: &str,
    all: &[T],
    chosen: T,
    link: impl Fn(T) -> String,
) -> Markup {
    html! {
        nav.spans aria-label=(title) {
            @for one in all {
                a href=(link(*one)) aria-current=[(*one == chosen).then_some("true")] { (word(*one)) } " "
            }
        }
    }
}
