//! The snapshot tree of a VM, with what can be done with each snapshot.

use api::units::format_bytes;
use api::{Snapshot, SnapshotTree, Store};
use maud::{Markup, html};

use super::page::{age, form_key};
use super::request::may;
use crate::access::sessions::Session;

/// Words of what a snapshot's buttons do, and their titles.
const VERBS: [(&str, &str); 3] =
    [("commit", "Commit..."), ("revert", "Revert..."), ("discard", "Discard...")];

pub(super) fn tree(tree: &SnapshotTree, session: &Session) -> Markup {
    html! {
        @if tree.snapshots.is_empty() { p.quiet { "There is no snapshot." } }
        @else { ul.tree { (under(tree, None, session)) } }
        @if !tree.unowned.is_empty() {
            p.notice {
                (tree.unowned.len()) " deltas belong to no snapshot. "
                @if may(session, "/vms/{vm}/commit") {
                    form method="post" action=(format!("/vms/{}/preview", tree.vm)) {
                        (form_key(session))
                        button.plain name="verb" value="consolidate" { "Consolidate..." }
                    }
                }
            }
        }
    }
}

/// Returns the children of a snapshot, and the running state where it is one of them. The 255 links of a chain bound the
/// depth.
fn under(tree: &SnapshotTree, parent: Option<&Snapshot>, session: &Session) -> Markup {
    let id = parent.map(|parent| parent.id.as_str());
    let children = tree.snapshots.iter().filter(|snapshot| snapshot.parent.as_deref() == id);
    let is_here = parent.map_or(!tree.snapshots.iter().any(|s| s.current), |parent| parent.current);
    html! {
        @for child in children {
            li {
                (node(tree, child, session))
                ul { (under(tree, Some(child), session)) }
            }
        }
        @if is_here { li.here { "you are here" } }
    }
}

fn node(tree: &SnapshotTree, snapshot: &Snapshot, session: &Session) -> Markup {
    let counted = match tree.store {
        Store::Native => "only here",
        Store::Redo => "in its deltas",
    };
    html! {
        strong { (snapshot.name) } " "
        span.quiet {
            (age(snapshot.created)) ", " (format_bytes(snapshot.delta_bytes)) " " (counted)
            @if let Some(by) = &snapshot.created_by { ", by " (by) }
            @if snapshot.quiesced { ", file systems frozen" }
            @if let Some(bytes) = snapshot.memory_bytes { ", memory in " (format_bytes(bytes)) }
            @if !snapshot.sealed { ", not sealed yet" }
            @if !snapshot.message.is_empty() { ": " (snapshot.message) }
        }
        " "
        @if may(session, "/vms/{vm}/commit") {
            form method="post" action=(format!("/vms/{}/preview", tree.vm)) {
                (form_key(session))
                input type="hidden" name="snapshot" value=(snapshot.id);
                @for (verb, title) in VERBS {
                    button.plain name="verb" value=(verb) aria-label=(format!("{title} {}", snapshot.name)) { (title) } " "
                }
            }
        }
        @if may(session, "/vms/{vm}/snapshots/rename") { (rename_form(tree, snapshot, session)) }
    }
}

fn rename_form(tree: &SnapshotTree, snapshot: &Snapshot, session: &Session) -> Markup {
    html! {
        details {
            summary aria-label=(format!("Rename {}", snapshot.name)) { "Rename" }
            form.row method="post" action=(format!("/vms/{}/rename-snapshot", tree.vm)) {
                (form_key(session))
                input type="hidden" name="snapshot" value=(snapshot.id);
                label { "Name" input name="name" value=(snapshot.name) required maxlength="80"; }
                label { "Description" input name="message" value=(snapshot.message) maxlength="1000"; }
                button { "Rename" }
            }
        }
    }
}
