//! The table of operations by role. A route that is not in it needs an administrator.

use api::Role;
use axum::http::Method;

use Reach::{All, Listed, Vm};
use Role::{Admin, Operator, Viewer};

/// What a token that is limited to some VMs may use a route for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The VM in the path.
    Vm,
    /// The answer has only what concerns its VMs.
    Listed,
    /// Nothing: the route is about more than VMs, or names a path of the host.
    All,
}

/// Right to use one route.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Right {
    pub method: Method,
    /// Path under `/api/v1`; that of the metrics is `/metrics`.
    pub route: &'static str,
    /// The operation, as the command line names it.
    pub operation: &'static str,
    /// The least role that has the right.
    pub role: Role,
    pub reach: Reach,
}

const fn get(route: &'static str, operation: &'static str, role: Role, reach: Reach) -> Right {
    Right { method: Method::GET, route, operation, role, reach }
}

const fn post(route: &'static str, operation: &'static str, role: Role, reach: Reach) -> Right {
    Right { method: Method::POST, route, operation, role, reach }
}

const fn put(route: &'static str, operation: &'static str, role: Role, reach: Reach) -> Right {
    Right { method: Method::PUT, route, operation, role, reach }
}

const fn delete(route: &'static str, operation: &'static str, role: Role, reach: Reach) -> Right {
    Right { method: Method::DELETE, route, operation, role, reach }
}

pub(crate) const RIGHTS: &[Right] = &[
    get("/status", "status", Viewer, All),
    get("/datastores", "datastore list", Viewer, All),
    post("/datastores", "datastore add", Admin, All),
    delete("/datastores/{name}", "datastore remove", Admin, All),
    post("/datastores/{name}/remove/preview", "datastore remove preview", Viewer, All),
    get("/sources", "source list", Viewer, All),
    post("/sources/{number}/copy", "source copy", Admin, All),
    get("/bin", "bin list", Viewer, Listed),
    post("/bin/restore", "bin restore", Admin, All),
    post("/bin/empty", "bin empty", Admin, All),
    post("/bin/empty/preview", "bin empty preview", Viewer, All),
    post("/check", "check", Admin, All),
    get("/scrub", "scrub result", Viewer, All),
    post("/scrub", "scrub", Admin, All),
    post("/import", "vm import", Admin, All),
    get("/vms", "vm list", Viewer, Listed),
    post("/vms", "vm create", Admin, All),
    get("/vms/{vm}", "vm show", Viewer, Vm),
    delete("/vms/{vm}", "vm remove", Admin, Vm),
    post("/vms/{vm}/remove/preview", "vm remove preview", Viewer, Vm),
    get("/vms/{vm}/space", "space", Viewer, Vm),
    post("/vms/{vm}/clone", "vm clone", Operator, Vm),
    post("/vms/{vm}/rename", "vm rename", Admin, Vm),
    post("/vms/{vm}/defragment", "vm defragment", Admin, Vm),
    post("/vms/{vm}/move", "vm move", Admin, Vm),
    post("/vms/{vm}/move/preview", "vm move preview", Viewer, Vm),
    post("/vms/{vm}/close", "vm close", Admin, Vm),
    post("/vms/{vm}/open", "vm open", Admin, Vm),
    put("/vms/{vm}/snapshot-dir", "vm set", Admin, All),
    put("/vms/{vm}/shared-writers", "vm set", Admin, Vm),
    put("/vms/{vm}/limits", "vm set", Admin, Vm),
    put("/vms/{vm}/labels", "vm set", Admin, Vm),
    // The daemon connects to the socket that it names.
    put("/vms/{vm}/guest", "vm set", Admin, All),
    post("/vms/{vm}/reset", "vm reset", Admin, Vm),
    post("/vms/{vm}/reset/preview", "vm reset preview", Viewer, Vm),
    get("/vms/{vm}/events", "events", Viewer, Vm),
    get("/vms/{vm}/record", "record", Viewer, Vm),
    get("/vms/{vm}/cost", "cost", Viewer, Vm),
    post("/vms/{vm}/disks", "vm disk add", Admin, All),
    delete("/vms/{vm}/disks/{number}", "vm disk remove", Admin, Vm),
    put("/vms/{vm}/disks/{number}/size", "vm disk grow", Admin, Vm),
    put("/vms/{vm}/disks/{number}/mode", "vm disk set", Admin, Vm),
    get("/vms/{vm}/snapshots", "snapshot tree", Viewer, Vm),
    post("/vms/{vm}/snapshots", "snapshot take", Operator, Vm),
    post("/vms/{vm}/snapshots/rename", "snapshot rename", Operator, Vm),
    get("/vms/{vm}/memory/{snapshot}", "snapshot memory", Viewer, Vm),
    post("/vms/{vm}/diff", "snapshot diff", Viewer, Vm),
    post("/vms/{vm}/commit", "snapshot commit", Admin, Vm),
    post("/vms/{vm}/commit/preview", "snapshot commit preview", Viewer, Vm),
    post("/vms/{vm}/revert", "snapshot revert", Admin, Vm),
    post("/vms/{vm}/revert/preview", "snapshot revert preview", Viewer, Vm),
    post("/vms/{vm}/discard", "snapshot discard", Admin, Vm),
    post("/vms/{vm}/discard/preview", "snapshot discard preview", Viewer, Vm),
    post("/vms/{vm}/undo", "snapshot undo", Admin, Vm),
    post("/vms/{vm}/undo/preview", "snapshot undo preview", Viewer, Vm),
    get("/events", "events", Viewer, Listed),
    get("/jobs", "job list", Viewer, Listed),
    get("/jobs/{id}", "job show", Viewer, Listed),
    post("/jobs/{id}/pause", "job pause", Operator, All),
    post("/jobs/{id}/resume", "job resume", Operator, All),
    post("/jobs/{id}/cancel", "job cancel", Admin, All),
    put("/jobs/{id}/limit", "job limit", Operator, All),
    get("/policies", "policy list", Viewer, All),
    post("/policies", "policy create", Admin, All),
    post("/policies/preview", "policy preview", Viewer, All),
    get("/policies/{name}", "policy show", Viewer, All),
    put("/policies/{name}", "policy set", Admin, All),
    delete("/policies/{name}", "policy remove", Admin, All),
    post("/policies/{name}/apply", "policy apply", Operator, All),
    get("/alarms", "alarm list", Viewer, Listed),
    post("/alarms/{alarm}/acknowledge", "alarm ack", Operator, Listed),
    delete("/alarms/{alarm}/acknowledge", "alarm unack", Operator, Listed),
    get("/alarms/channels", "alarm channels", Viewer, All),
    post("/alarms/channels/{name}/test", "alarm test", Operator, All),
    get("/alarms/mutes", "alarm mutes", Viewer, All),
    post("/alarms/mutes", "alarm mute", Operator, All),
    delete("/alarms/mutes/{id}", "alarm unmute", Operator, All),
    get("/alarms/rules", "alarm rules", Viewer, All),
    put("/alarms/rules", "alarm set", Admin, All),
    delete("/alarms/rules/{rule}", "alarm reset", Admin, All),
    get("/tokens", "token list", Admin, All),
    post("/tokens", "token create", Admin, All),
    delete("/tokens/{name}", "token revoke", Admin, All),
    get("/audit", "audit", Admin, All),
    get("/config", "config export", Admin, All),
    post("/config", "config import", Admin, All),
    post("/console", "console", Viewer, Listed),
    get("/metrics", "metrics", Role::Metrics, All),
];

/// Right of routes that are not in the table.
const UNKNOWN: &Right =
    &Right { method: Method::GET, route: "", operation: "unknown", role: Admin, reach: All };

/// Returns the right that a request needs. `route` is the path under `/api/v1` as it was declared.
pub(crate) fn needed(method: &Method, route: &str) -> &'static Right {
    // Axum answers HEAD as GET without the body.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    RIGHTS.iter().find(|right| right.method == method && right.route == route).unwrap_or(UNKNOWN)
}

impl Right {
    /// Returns whether a request that uses this right is recorded in the audit.
    pub(crate) fn is_change(&self) -> bool {
        let looks =
            self.method == Method::GET || self.route.ends_with("/preview") || self.route.ends_with("/diff");
        !looks
    }

    /// Returns whether the operation adds to the space that VMs use.
    pub(crate) fn uses_space(&self) -> bool {
        matches!(self.operation, "snapshot take" | "policy apply" | "vm clone")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The routes that the sources declare, and those of the table.
    #[test]
    fn the_table_has_every_route() {
        let sources = [
            include_str!("../rest/routes.rs"),
            include_str!("../rest/alarms.rs"),
            include_str!("../rest/config.rs"),
            include_str!("../rest/events.rs"),
            include_str!("../rest/record.rs"),
            include_str!("../rest.rs"),
        ]
        .concat();
        let declared = sources.split(".route(").skip(1).filter_map(|rest| rest.split('"').nth(1));
        let declared: BTreeSet<&str> = declared.collect();
        assert_eq!(declared, RIGHTS.iter().map(|right| right.route).collect());
    }

    #[test]
    fn a_route_is_in_the_table_once_and_a_preview_needs_a_viewer_only() {
        for (n, right) in RIGHTS.iter().enumerate() {
            let again = RIGHTS[n + 1..].iter().any(|r| r.method == right.method && r.route == right.route);
            assert!(!again, "{} {}", right.method, right.route);
            assert!(right.route.contains("{vm}") || right.reach != Vm, "{}", right.route);
            if !right.is_change()
                && !matches!(right.operation, "token list" | "audit" | "metrics" | "config export")
            {
                assert_eq!(right.role, Viewer, "{}", right.route);
            }
        }
    }

    #[test]
    fn what_loses_data_needs_an_administrator() {
        for verb in ["commit", "revert", "discard", "reset", "remove", "empty", "move", "grow", "undo"] {
            let of_verb = |right: &&Right| right.operation.ends_with(verb);
            let mut found = RIGHTS.iter().filter(of_verb).peekable();
            assert!(found.peek().is_some(), "{verb}");
            assert!(found.all(|right| right.role == Admin), "{verb}");
        }
        assert_eq!(needed(&Method::PATCH, "/vms").role, Admin);
        assert_eq!(needed(&Method::GET, "/nothing").role, Admin);
    }
}
