//! `unstun snapshot tree`: a drawing of every snapshot with its age and size, and of the snapshot on which the VM runs.

use api::output;
use api::units::{format_age, format_bytes};
use api::{Snapshot, SnapshotTree, Store, UnownedDelta, VmCost};
use jiff::Timestamp;

use super::cost;

/// Texts in front of a node, and in front of the nodes under it.
struct Lines {
    branch: &'static str,
    last: &'static str,
    beside: &'static str,
    below: &'static str,
}

/// Lines U+251C, U+2514 and U+2502, as `tree` and `lsblk` draw them.
const TERMINAL: Lines =
    Lines { branch: "\u{251c}\u{2500} ", last: "\u{2514}\u{2500} ", beside: "\u{2502}  ", below: "   " };
const PLAIN: Lines = Lines { branch: "|- ", last: "`- ", beside: "|  ", below: "   " };

const HERE: &str = "you are here";

/// Returns the tree; with costs, each snapshot has a line with its own.
pub(super) fn draw(tree: &SnapshotTree, costs: Option<&VmCost>) -> String {
    let lines = if output::stdout_is_terminal() { &TERMINAL } else { &PLAIN };
    draw_with(tree, costs, lines, Timestamp::now())
}

fn draw_with(tree: &SnapshotTree, costs: Option<&VmCost>, lines: &Lines, now: Timestamp) -> String {
    let mut text = match tree.snapshots.is_empty() {
        true => format!("{0} has no snapshots; take one with `unstun snapshot take {0} NAME`\n", tree.vm),
        false => {
            let mut text = format!("{}\n", tree.vm);
            Drawing { store: tree.store, all: &tree.snapshots, costs, lines, now }.under(None, "", &mut text);
            text
        }
    };
    text.push_str(&unowned(&tree.unowned, tree.vm.as_str()));
    if tree.machine_states > 0 {
        text.push_str(&format!(
            "VMware's machine state (.vmsn) is kept with {} of them and is removed with its snapshot\n",
            tree.machine_states
        ));
    }
    text
}

struct Drawing<'a> {
    store: Store,
    all: &'a [Snapshot],
    costs: Option<&'a VmCost>,
    lines: &'a Lines,
    now: Timestamp,
}

impl Drawing<'_> {
    /// Draws the children of `parent`, and the running state if it is one. The 255 links of a chain bound the depth.
    fn under(&self, parent: Option<&Snapshot>, prefix: &str, text: &mut String) {
        let id = parent.map(|parent| parent.id.as_str());
        let children: Vec<&Snapshot> = self.all.iter().filter(|s| s.parent.as_deref() == id).collect();
        let current = self.all.iter().any(|s| s.current);
        let here = parent.map_or(!current, |parent| parent.current);
        for (at, child) in children.iter().enumerate() {
            let last = !here && at + 1 == children.len();
            let (tip, beside) = match last {
                true => (self.lines.last, self.lines.below),
                false => (self.lines.branch, self.lines.beside),
            };
            text.push_str(&format!("{prefix}{tip}{}\n", self.node(child)));
            let below = format!("{prefix}{beside}");
            let stem = if self.has_children(child) { self.lines.beside } else { self.lines.below };
            if !child.message.is_empty() {
                text.push_str(&format!("{below}{stem}\"{}\"\n", child.message));
            }
            if let Some(costs) = self.costs {
                text.push_str(&format!("{below}{stem}{}\n", cost::of_snapshot(costs, child)));
            }
            self.under(Some(child), &below, text);
        }
        if here {
            text.push_str(&format!("{prefix}{}{HERE}\n", self.lines.last));
        }
    }

    fn has_children(&self, snapshot: &Snapshot) -> bool {
        snapshot.current || self.all.iter().any(|s| s.parent.as_deref() == Some(&snapshot.id))
    }

    fn node(&self, snapshot: &Snapshot) -> String {
        let age_s = self.now.duration_since(snapshot.created).as_secs();
        let (age, size) = (format_age(age_s), format_bytes(snapshot.delta_bytes));
        let sealed = if snapshot.sealed { "" } else { ", not sealed yet" };
        let by = snapshot.created_by.as_ref().map_or(String::new(), |by| format!(", by {by}"));
        let frozen = if snapshot.quiesced { ", file systems frozen" } else { "" };
        let memory = snapshot
            .memory_bytes
            .map_or(String::new(), |bytes| format!(", memory in {}", format_bytes(bytes)));
        format!("{}  {age}, {size} {}{frozen}{memory}{by}{sealed}", snapshot.name, counted(self.store))
    }
}

/// Returns what `tree` and `space` count as a snapshot's bytes.
pub(super) fn counted(store: Store) -> &'static str {
    match store {
        Store::Native => "exclusive",
        Store::Redo => "in its deltas",
    }
}

fn unowned(deltas: &[UnownedDelta], vm: &str) -> String {
    if deltas.is_empty() {
        return String::new();
    }
    let mut text =
        format!("deltas that no snapshot owns (`unstun snapshot consolidate {vm}` merges them):\n");
    for delta in deltas {
        let file = delta.descriptor.file_name().unwrap_or(delta.descriptor.as_os_str());
        let (file, size) = (file.to_string_lossy(), format_bytes(delta.allocated_bytes));
        text.push_str(&format!("   disk{}  {file}  {size}\n", delta.disk));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: &str, parent: Option<&str>, created: &str) -> Snapshot {
        Snapshot {
            id: id.to_owned(),
            name: format!("snap-{id}"),
            parent: parent.map(str::to_owned),
            created: created.parse().unwrap(),
            current: false,
            sealed: true,
            message: String::new(),
            created_by: None,
            quiesced: false,
            memory_bytes: None,
            delta_bytes: 1 << 20,
        }
    }

    fn drawn(tree: &SnapshotTree, lines: &Lines) -> String {
        draw_with(tree, None, lines, "2026-11-20T12:00:00Z".parse().unwrap())
    }

    fn branches() -> SnapshotTree {
        let mut snapshots = vec![
            snapshot("1", None, "2026-11-17T12:00:00Z"),
            snapshot("2", Some("1"), "2026-11-20T09:00:00Z"),
            snapshot("3", Some("1"), "2026-11-20T11:59:30Z"),
            snapshot("4", None, "2026-11-20T11:50:00Z"),
        ];
        snapshots[1].current = true;
        snapshots[1].message = "before the upgrade".to_owned();
        snapshots[3].sealed = false;
        SnapshotTree {
            vm: "web".parse().unwrap(),
            store: Store::Redo,
            snapshots,
            unowned: vec![],
            machine_states: 0,
        }
    }

    #[test]
    fn branches_ages_sizes_and_where_the_vm_runs() {
        let expected = "\
web
|- snap-1  3 days ago, 1 MiB in its deltas
|  |- snap-2  3 h ago, 1 MiB in its deltas
|  |  |  \"before the upgrade\"
|  |  `- you are here
|  `- snap-3  30 s ago, 1 MiB in its deltas
`- snap-4  10 min ago, 1 MiB in its deltas, not sealed yet
";
        assert_eq!(drawn(&branches(), &PLAIN), expected);
    }

    #[test]
    fn on_a_terminal_the_lines_are_joined() {
        let text = drawn(&branches(), &TERMINAL);
        assert!(text.contains("\u{2502}  \u{2502}  \u{2514}\u{2500} you are here"), "{text}");
        assert_eq!(text.lines().count(), drawn(&branches(), &PLAIN).lines().count());
    }

    #[test]
    fn a_vm_that_runs_on_no_snapshot_is_beside_them() {
        let mut tree = branches();
        tree.snapshots.truncate(1);
        assert!(drawn(&tree, &PLAIN).ends_with("in its deltas\n`- you are here\n"));
        tree.snapshots.clear();
        assert!(drawn(&tree, &PLAIN).contains("snapshot take web NAME"));
    }

    #[test]
    fn unowned_deltas_and_machine_states_are_counted() {
        let mut tree = branches();
        tree.machine_states = 2;
        tree.unowned = vec![UnownedDelta {
            disk: 1,
            descriptor: "/ds/web/web_1-000004.vmdk".into(),
            allocated_bytes: 12 << 20,
        }];
        let text = drawn(&tree, &PLAIN);
        assert!(text.contains("disk1  web_1-000004.vmdk  12 MiB"), "{text}");
        assert!(text.contains("snapshot consolidate web") && text.contains("kept with 2 of them"), "{text}");
    }
}
