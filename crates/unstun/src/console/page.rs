//! What all pages have: head, navigation, and texts for figures.

use api::Quiesce;
use api::name::VmName;
use api::units::format_age;
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};

use super::browser::Browser;
use crate::access::sessions::{Notice, Session};

/// A page for a browser that has logged in.
pub(super) struct Page<'a> {
    pub title: &'a str,
    pub browser: &'a Browser,
    /// Whether the script keeps the page up to date.
    pub is_live: bool,
    /// What an action has done, for the top of the page.
    pub notice: Option<&'a Notice>,
}

fn head(title: &str) -> Markup {
    html! {
        meta charset="utf-8";
        meta name="viewport" content="width=device-width, initial-scale=1";
        title { (title) " - unstun" }
        link rel="stylesheet" href="/console.css";
        link rel="icon" href="/console.svg";
    }
}

impl Page<'_> {
    pub(super) fn with(&self, body: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head { (head(self.title)) }
                body {
                    a.skip href="#content" { "Skip to the content" }
                    header {
                        a.name href="/" { "unstun" }
                        nav aria-label="Main" {
                            a href="/" { "Overview" }
                            @if !self.browser.session.caller.is_limited() { a href="/datastores" { "Datastores" } }
                            a href="/activity" { "Activity" }
                            a href="/alarms" {
                                "Alarms" @if self.browser.alarms > 0 { " " span.bad { (self.browser.alarms) } }
                            }
                            @if !self.browser.session.caller.is_limited() { a href="/policies" { "Policies" } }
                            a href="/bin" { "Bin" }
                            @if self.browser.has_reports { a href="/reports" { "Reports" } }
                            @if self.browser.session.caller.is_unlimited_admin() { a href="/access" { "Access" } }
                        }
                        form method="post" action="/logout" {
                            @let session = &self.browser.session;
                            span.quiet { (session.caller.who) ", " (session.caller.role.as_str()) }
                            (form_key(session))
                            button.plain { "Log out" }
                        }
                    }
                    main id="content" data-live=(if self.is_live { "yes" } else { "no" }) {
                        h1 { (self.title) }
                        @if let Some(notice) = self.notice { (shown(notice)) }
                        div #live { (body) }
                    }
                    p #state .quiet role="status" {}
                    script src="/console.js" defer {}
                }
            }
        }
    }
}

fn shown(notice: &Notice) -> Markup {
    match notice {
        Notice::Done(text) => html! { p.notice.done role="status" { (text) } },
        Notice::Fault(text) => html! { p.notice.fault role="alert" { (text) } },
    }
}

/// Returns the hidden field by which the daemon knows that a form is its own.
pub(super) fn form_key(session: &Session) -> Markup {
    html! { input type="hidden" name="form_key" value=(session.form_key); }
}

/// Returns a page without navigation, for those who have not logged in.
pub(super) fn bare(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (head(title)) }
            body { main id="content" { h1 { (title) } (body) } }
        }
    }
}

/// Returns a time as its distance from now, with the time itself for those who need it.
pub(super) fn age(time: Timestamp) -> Markup {
    let seconds = Timestamp::now().duration_since(time).as_secs();
    html! { time datetime=(time) title=(format!("{time:.0}")) { (format_age(seconds)) } }
}

/// Returns the links between the pages of a VM. `here` is the end of the address of the page that has them.
pub(super) fn vm_pages(vm: &VmName, here: &str) -> Markup {
    let pages = [
        ("Overview", ""),
        ("Attach", "/attach"),
        ("Space", "/space"),
        ("Cost", "/cost"),
        ("Settings", "/settings"),
    ];
    html! {
        nav.spans aria-label="Pages of the VM" {
            @for (title, end) in pages {
                a href=(format!("/vms/{vm}{end}")) aria-current=[(end == here).then_some("page")] { (title) } " "
            }
        }
    }
}

/// Returns lines for a shell. The titles of a page differ.
pub(super) fn shell(title: &str, lines: &Markup) -> Markup {
    html! { pre tabindex="0" role="region" aria-label=(title) { (lines) } }
}

/// A choice of one of several values, each with its title.
pub(super) fn choice(title: &str, name: &str, options: &[(&str, &str)], now: &str) -> Markup {
    html! {
        label { (title)
            select name=(name) {
                @for (value, title) in options { option value=(value) selected[*value == now] { (title) } }
            }
        }
    }
}

/// A choice of what a take does with the guest's file systems.
pub(super) fn quiesce_choice(now: Quiesce) -> Markup {
    let options = [("no", "no"), ("try", "if possible"), ("require", "or take no snapshot")];
    choice("Freeze file systems", "quiesce", &options, now.as_str())
}
