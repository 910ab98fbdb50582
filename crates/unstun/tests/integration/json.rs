//! `docs/cli-json.md` against the structs: every field is documented, and every documented field exists.

mod backups;

use std::collections::{BTreeMap, BTreeSet};

use api::client::Client;
use api::client::runtime;
use api::error::{Error, ErrorBody, ErrorKind};
use api::name::{DiskRef, SnapshotRef, VmName};
use api::*;
use lab::demo::report::{self, Phase, Report, StoreRun};
use serde::Serialize;
use serde_json::Value;

use crate::support::Own;

const PAGE: &str = include_str!("../../../../docs/cli-json.md");

/// The first column of the table under each `### Type`.
fn documented() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut types = BTreeMap::new();
    for section in PAGE.split("\n### ").skip(1) {
        let section = section.split("\n## ").next().unwrap();
        let name = section.lines().next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        types.insert(name, rows.map(|(field, _)| field).collect());
    }
    types
}

/// Of every type, from one value each.
#[derive(Default)]
struct Actual(BTreeMap<&'static str, BTreeSet<String>>);

impl Actual {
    fn add(&mut self, name: &'static str, value: &impl Serialize) {
        let Value::Object(object) = serde_json::to_value(value).unwrap() else {
            panic!("{name} is no object")
        };
        self.0.insert(name, object.keys().cloned().collect());
    }
}

fn disk_create() -> VmCreate {
    VmCreate {
        name: "web".parse().unwrap(),
        disks: vec![DiskCreate::new(20 << 30)],
        store: Store::Redo,
        when_full: WhenFull::Wait,
        datastore: None,
    }
}

async fn from_the_api(actual: &mut Actual) {
    let daemon = Own::start();
    let client = daemon.client();
    let create = disk_create();
    let take = SnapshotTake::named("before".parse().unwrap());
    let vm = client.vm_create(&create).await.unwrap();
    let name = vm.name.clone();
    let taken = client.snapshot_take(&name, &take).await.unwrap();
    let guest = daemon.guest("web/disk0");
    let tree = client.snapshot_tree(&name).await.unwrap();
    let event = client.events(&name, 0).await.unwrap().remove(0);
    let diff = Diff { disk: 0, from: (&take.name).into(), to: None, start_bytes: 0 };
    let differences = client.snapshot_diff(&name, &diff).await.unwrap();
    let used = client.vm_space(&name).await.unwrap();
    actual.add("Diff", &diff);
    actual.add("Differences", &differences);
    actual.add("DiskRange", &differences.ranges[0]);
    actual.add("DifferencesVerified", &DifferencesVerified::default());
    actual.add("VmSpace", &used);
    actual.add("DiskOrder", &used.disks[0]);
    actual.add("VmDefragment", &VmDefragment::default());
    actual.add("SnapshotSpace", &used.snapshots[0]);
    actual.add("Status", &client.status().await.unwrap());
    actual.add("VmSummary", &client.vm_list().await.unwrap()[0]);
    actual.add("Vm", &vm);
    actual.add("Space", &vm.space);
    actual.add("Disk", &vm.disks[0]);
    actual.add("DiskIo", &vm.disks[0].io);
    actual.add("Layer", &vm.disks[0].layers[0]);
    actual.add("LayerIo", &vm.disks[0].layers[0].io);
    actual.add("VmCreate", &create);
    actual.add("DiskCreate", &create.disks[0]);
    actual.add("SnapshotTake", &take);
    let rename = SnapshotRename { snapshot: (&take.name).into(), name: None, message: Some("a".to_owned()) };
    assert_eq!(client.snapshot_rename(&name, &rename).await.unwrap().message, "a");
    actual.add("SnapshotRename", &rename);
    actual.add("SnapshotTaken", &taken);
    actual.add("SnapshotTree", &tree);
    actual.add("Snapshot", &tree.snapshots[0]);
    actual.add("Event", &event);
    actual.add("EventDisk", &event.disks[0]);
    actual.add("CommitPreview", &client.commit_preview(&name, &CommitTarget::All).await.unwrap());
    let job = client.snapshot_commit(&name, &CommitTarget::All).await.unwrap();
    actual.add("Job", &job);
    actual.add("Defragmented", &Defragmented::default());
    client.job_cancel(job.id).await.unwrap();
    actual.add("UnownedDelta", &client.snapshot_tree(&name).await.unwrap().unowned[0]);
    let token = TokenCreate {
        name: "ci".parse().unwrap(),
        role: Role::Operator,
        vms: Vec::new(),
        valid_s: None,
        quota_bytes: None,
    };
    let created = client.token_create(&token).await.unwrap();
    actual.add("TokenCreate", &token);
    actual.add("Token", &created.token);
    actual.add("TokenCreated", &created);
    let config = client.config_export().await.unwrap();
    actual.add("Config", &config);
    actual.add("StoredToken", &config.tokens[0]);
    actual.add("ConfigImported", &client.config_import(false, &config).await.unwrap());
    actual.add("ConsoleLink", &client.console_link().await.unwrap());
    let now = jiff::Timestamp::now();
    let cost = client.vm_cost(&name, now - jiff::SignedDuration::from_secs(600), now).await.unwrap();
    actual.add("VmCost", &cost);
    actual.add("SnapshotCost", &cost.snapshots[0]);
    actual.add("Load", &cost.with);
    let expected =
        CommitExpectation { at: now, seconds: 1, guest_s: 1.0, p99_us: None, committing_p99_us: None };
    actual.add("CommitExpectation", &expected);
    actual.add("CommitForecast", &CommitForecast { now: expected, quietest: None });
    actual.add("Latency", &Latency { mean_us: 1.0, median_us: 1.0, p99_us: 1.0 });
    let from = now - jiff::SignedDuration::from_secs(60);
    actual.add("Recorded", &client.vm_recorded(&name, from, now, 0).await.unwrap());
    actual.add("AuditEntry", &client.audit(1).await.unwrap()[0]);
    actual.add("JobLimit", &JobLimit { limit_bytes_s: None });
    from_policies(actual, &client, &name).await;
    from_alarms(actual, &client).await;
    from_changes(actual, &client, &name).await;
    drop(guest);
    from_other_vms(actual, &daemon, &client).await;
    from_the_bin(actual, &client, &name).await;
    from_datastores(actual, &daemon, &client).await;
}

async fn from_policies(actual: &mut Actual, client: &Client, name: &VmName) {
    let labels = VmLabels { tags: vec!["prod".parse().unwrap()], note: "a note".to_owned() };
    assert_eq!(client.vm_set_labels(name, &labels).await.unwrap().tags, labels.tags);
    let text = r#"{"name": "p", "schedule": ["yearly"], "keep": {"last": 1}, "tags": ["prod"]}"#;
    let policy: Policy = serde_json::from_str(text).unwrap();
    client.policy_create(&policy).await.unwrap();
    let applied = client.policy_apply(&policy.name, &PolicyApply::default()).await.unwrap();
    // All snapshots but the last would be removed.
    let all = Policy { removes: Removes::All, enabled: false, ..policy.clone() };
    let status = client.policy_set(&policy.name, &all).await.unwrap();
    client.snapshot_take(name, &SnapshotTake::named("last".parse().unwrap())).await.unwrap();
    let preview = client.policy_preview(&all).await.unwrap();
    let (time, action, cause) = (status.created, PolicyAction::Take, "a cause".to_owned());
    actual.add("VmLabels", &labels);
    actual.add("Policy", &policy);
    actual.add("Retention", &policy.keep);
    actual.add("PolicyStatus", &status);
    actual.add("PolicyRun", &PolicyRun { scheduled: time, started: time, ended: None, taken: 1, failed: 0 });
    actual.add("PolicyProblem", &PolicyProblem { vm: name.clone(), action, snapshot: None, cause, time });
    actual.add("PolicyBackup", &PolicyBackup { repository: "r".parse().unwrap(), keep: policy.keep });
    actual.add("PolicyBackups", &PolicyBackups::default());
    actual.add("PolicyPreview", &preview);
    actual.add("PolicyPreviewVm", &preview.vms[0]);
    actual.add("PolicyRemoval", &preview.vms[0].removed[0]);
    actual.add("PolicyApply", &PolicyApply::default());
    actual.add("PolicyApplied", &applied);
    actual.add("PolicyTaken", &applied.taken[0]);
    assert_eq!(client.policy_remove(&policy.name).await.unwrap().policy, all);
    let job = client.snapshot_commit(name, &CommitTarget::All).await.unwrap();
    ended(client, job).await;
}

async fn from_alarms(actual: &mut Actual, client: &Client) {
    let mute = AlarmMute { rule: Some(AlarmRule::Latency), for_s: 60, ..AlarmMute::default() };
    let muted = client.alarm_mute(&mute).await.unwrap();
    let threshold = AlarmThreshold { rule: AlarmRule::Latency, vm: None, tag: None, value: Some(100) };
    let rules = client.alarm_set_threshold(&threshold).await.unwrap();
    let acknowledged = Acknowledged { by: "a user".to_owned(), time: muted.until, note: String::new() };
    let alarm = Alarm {
        id: "latency:web".to_owned(),
        rule: AlarmRule::Latency,
        severity: AlarmSeverity::Warning,
        object: "web".to_owned(),
        vm: None,
        message: String::new(),
        raised: muted.until,
        cleared: None,
        acknowledged: None,
    };
    let channel = AlarmChannel {
        name: "x".to_owned(),
        kind: None,
        fault: None,
        delivered: 0,
        failed: 0,
        last: None,
        last_error: None,
    };
    let (host, datastore) = (String::new(), String::new());
    let message =
        AlarmMessage { host, datastore, time: muted.until, alarms: Vec::new(), more: 0, test: false };
    actual.add("Alarm", &alarm);
    actual.add("Acknowledged", &acknowledged);
    actual.add("AlarmAcknowledge", &AlarmAcknowledge::default());
    actual.add("AlarmMute", &mute);
    actual.add("AlarmMuted", &muted);
    actual.add("AlarmThreshold", &threshold);
    actual.add("AlarmRuleShown", &rules[0]);
    actual.add("AlarmChannel", &channel);
    actual.add("AlarmMessage", &message);
    assert_eq!(client.alarm_unmute(muted.id).await.unwrap(), muted);
}

async fn from_the_bin(actual: &mut Actual, client: &Client, name: &VmName) {
    let remove = VmRemove { delete_disks: true, purge: false, keep: true };
    let preview = client.vm_remove_preview(name, &remove).await.unwrap();
    let removed = client.remove_vm(name, &remove).await.unwrap();
    assert_eq!(client.bin_entries(None).await.unwrap(), removed.bin.as_slice());
    actual.add("VmRemove", &remove);
    actual.add("VmRemovePreview", &preview);
    actual.add("RemovedDisk", &preview.disks.unwrap()[0]);
    actual.add("BinEntry", removed.bin.as_ref().unwrap());
    actual.add("VmRemoved", &removed);
    let restore = BinRestore { entry: name.to_string(), name: None, datastore: None, disconnect: false };
    actual.add("BinRestore", &restore);
    actual.add("BinRestored", &client.bin_restore(&restore).await.unwrap());
    client.remove_vm(name, &remove).await.unwrap();
    let empty = BinEmpty::default();
    let preview = client.bin_empty_preview(&empty).await.unwrap();
    actual.add("BinEmpty", &empty);
    actual.add("BinEmptied", &preview);
    assert_eq!(client.bin_empty(&empty).await.unwrap(), preview);
}

fn add_memory(actual: &mut Actual, name: &VmName) {
    let saved = MemorySaved { ram_bytes: 1, stream_bytes: 1, stored_bytes: 1, stopped_us: 1, saved_us: 1 };
    actual.add("MemorySaved", &saved);
    let memory = SnapshotMemory {
        vm: name.clone(),
        snapshot: "warm".to_owned(),
        id: String::new(),
        file: "/m".into(),
        stored_bytes: 1,
        ram_bytes: 1,
        qemu: "7.2.22".to_owned(),
    };
    actual.add("SnapshotMemory", &memory);
}

async fn from_changes(actual: &mut Actual, client: &Client, name: &VmName) {
    let taken = SnapshotTake { quiesce: Quiesce::Try, ..SnapshotTake::named("after".parse().unwrap()) };
    let snapshot: SnapshotRef = (&taken.name).into();
    let quiesced = client.snapshot_take(name, &taken).await.unwrap().quiesced;
    actual.add("Quiesced", quiesced.as_ref().unwrap());
    let thawed = GuestThawed { vm: name.clone(), access: "command:db".to_owned(), cause: None };
    actual.add("GuestThawed", &thawed);
    add_memory(actual, name);
    let revert = Revert { disconnect: true, purge: true, ..Revert::default() };
    let discard = Discard { snapshot: snapshot.clone(), disconnect: true, purge: true, keep: false };
    let loss = client.snapshot_revert(name, &revert).await.unwrap();
    actual.add("Revert", &revert);
    actual.add("Discard", &discard);
    actual.add("Reset", &Reset::default());
    actual.add("Loss", &loss);
    actual.add("VmClient", &loss.clients[0]);
    let clone = VmClone { snapshot, name: "test1".parse().unwrap() };
    client.vm_clone(name, &clone).await.unwrap();
    actual.add("VmClone", &clone);
    let purge = VmRemove { delete_disks: true, purge: true, keep: false };
    client.remove_vm(&clone.name, &purge).await.unwrap();
    client.snapshot_discard(name, &discard).await.unwrap();
    actual.add("SharedWriters", &SharedWriters { shared: true });
    assert!(client.vm_set_shared_writers(name, true).await.unwrap().shared_writers);
    let guest = VmGuest {
        access: Some("command:db".parse().unwrap()),
        frozen_ms_max: 500,
        qmp: Some("unix:/run/unstun/db-qmp.sock".parse().unwrap()),
    };
    actual.add("VmGuest", &guest);
    assert_eq!(client.vm_set_guest(name, &guest).await.unwrap().guest, guest);
    let limits = VmLimits { iops: Some(2000), bandwidth_bytes_s: Some(100 << 20), ..VmLimits::default() };
    actual.add("VmLimits", &limits);
    assert_eq!(client.vm_set_limits(name, &limits).await.unwrap().limits, limits);
    let disk: DiskRef = format!("{name}/disk1").parse().unwrap();
    client.disk_add(name, &DiskCreate::new(512)).await.unwrap();
    actual.add("DiskGrow", &DiskGrow { size_bytes: 512 });
    actual.add("DiskSetMode", &DiskSetMode { mode: DiskMode::Persistent });
    actual.add("DiskGrown", &client.grow_disk(&disk, 1024).await.unwrap());
    actual.add("DiskRemoved", &client.remove_disk(&disk, false).await.unwrap());
}

/// A VM whose files stay when it is removed is imported again, and moved.
async fn from_other_vms(actual: &mut Actual, daemon: &Own, client: &Client) {
    let name: VmName = "old".parse().unwrap();
    let vm = client.vm_create(&VmCreate { name: name.clone(), ..disk_create() }).await.unwrap();
    let dir = SnapshotDir { dir: Some(daemon.beside("fast")) };
    actual.add("SnapshotDir", &dir);
    assert_eq!(client.vm_set_snapshot_dir(&name, &dir).await.unwrap().snapshot_dir, dir.dir);
    client.vm_set_snapshot_dir(&name, &SnapshotDir { dir: None }).await.unwrap();
    actual.add("Disconnect", &Disconnect::default());
    actual.add("VmClosed", &client.vm_close(&name, true).await.unwrap());
    let rename = VmRename { name: "older".parse().unwrap() };
    actual.add("VmRename", &rename);
    let open = VmOpen { take_over: false };
    actual.add("VmOpen", &open);
    client.vm_open(&name, &open).await.unwrap();
    client.remove_vm(&name, &VmRemove { delete_disks: false, purge: false, keep: false }).await.unwrap();
    let import = VmImport {
        path: vm.home,
        name: None,
        in_place: true,
        allow_roots: Vec::new(),
        ignore_content_ids: false,
        write_sesparse: false,
        store: Some(Store::Redo),
        copy: true,
        verify: true,
        when_full: WhenFull::Wait,
        datastore: None,
    };
    assert_eq!(client.vm_import(&import).await.unwrap().id, vm.id);
    actual.add("VmImport", &import);
    let moving = VmMove { disk: None, store: Some(Store::Native), datastore: None };
    actual.add("VmMovePreview", &client.vm_move_preview(&name, &moving).await.unwrap());
    let job = client.vm_move(&name, &moving).await.unwrap();
    assert_eq!(job.operation, Operation::Move);
    actual.add("VmMove", &moving);
    ended(client, job).await;
}

async fn ended(client: &Client, mut job: Job) {
    while job.state.is_open() {
        job = client.job_show(job.id).await.unwrap();
    }
    assert_eq!(job.state, JobState::Done, "{job:?}");
}

async fn from_datastores(actual: &mut Actual, daemon: &Own, client: &Client) {
    let main = client.datastore_list().await.unwrap().remove(0).name;
    let scrub = client.store_scrub(&main).await.unwrap();
    assert_eq!(scrub.vm, None);
    ended(client, scrub).await;
    assert_eq!(client.store_check(&main).await.unwrap(), client.store_scrubbed(&main).await.unwrap());
    let add = DatastoreAdd { path: daemon.beside("added"), name: None, take_over: false, reservations: None };
    let added = client.datastore_add(&add).await.unwrap();
    actual.add("DatastoreAdd", &add);
    actual.add("Datastore", &added);
    let preview = client.datastore_remove_preview(&added.name).await.unwrap();
    actual.add("DatastoreRemovePreview", &preview);
    actual.add("DatastoreRemoved", &client.datastore_remove(&added.name).await.unwrap());
}

fn rebuilt_here(actual: &mut Actual) {
    let range = DiskRange { start_bytes: 0, length_bytes: 1 };
    let state = RebuiltState { node: 1, name: None, size_bytes: 1, recovered_bytes: 0, lost: vec![range] };
    actual.add("RebuiltState", &state);
    actual.add(
        "StoreRebuilt",
        &StoreRebuilt {
            source: "/a".into(),
            path: "/b".into(),
            checkpoint: 1,
            catalogue: true,
            journal: true,
            complete: false,
            states: vec![state],
            notes: vec![String::new()],
        },
    );
}

fn shown_by_the_demo(actual: &mut Actual) {
    let phase = Phase {
        name: "baseline",
        seconds: 5.0,
        reads_s: 0.0,
        writes_s: 0.0,
        of_baseline: None,
        p99_us: None,
        longest_gap_us: 0,
        stun_us: None,
    };
    actual.add("Phase", &phase);
    let run = StoreRun {
        vm: "demo-redo".parse().unwrap(),
        store: "redo".to_owned(),
        phases: vec![phase],
        commit_seconds: None,
        reads_checked: 0,
    };
    actual.add("StoreRun", &run);
    let operation = report::Operation { name: "take", us: 1 };
    actual.add("Operation", &operation);
    let report = Report { runs: vec![run], operations: vec![operation], attach: String::new() };
    actual.add("Report", &report);
}

fn made_here(actual: &mut Actual) {
    let body = ErrorBody::from(Error::failed("x"));
    actual.add(
        "DatastoreCreated",
        &DatastoreCreated { path: "/dev/x".into(), size_bytes: 0, overwritten: None },
    );
    actual.add("ErrorBody", &body);
    actual.add("ErrorFields", &body.error);
    let (chain, output) = ("/a".into(), "/b".into());
    actual.add("Converted", &Converted { chain, output, size_bytes: 0, bytes_written: 0, layers: 1 });
    let (snapshot, since) = (Some("b".to_owned()), Some("a".to_owned()));
    let pulled = Pulled {
        export: String::new(),
        output: "/b".into(),
        size_bytes: 0,
        snapshot,
        since,
        bytes_read: 0,
        bytes_written: 0,
    };
    actual.add("Pulled", &pulled);
    let finding = Finding {
        severity: Severity::Note,
        file: String::new(),
        field: String::new(),
        found: String::new(),
        expected: String::new(),
        remedy: String::new(),
    };
    actual.add("Finding", &finding);
    actual.add("Checked", &Checked { path: "/a".into(), findings: vec![finding.clone()] });
    let mend = Mend {
        file: String::new(),
        action: MendAction::Edit,
        lines: Vec::new(),
        reason: String::new(),
        caution: None,
    };
    actual.add("Mend", &mend);
    let unmended = Unmended { finding: finding.clone(), reason: String::new() };
    actual.add("Unmended", &unmended);
    let repair = Repair {
        path: "/a".into(),
        mends: vec![mend],
        unmended: vec![unmended],
        findings: vec![finding.clone()],
        undo_copies: None,
    };
    actual.add("Repair", &repair);
    let undone = RepairUndone { path: "/a".into(), undo_copies: "/b".into(), files: Vec::new() };
    actual.add("RepairUndone", &undone);
    let disk =
        AttachDisk { number: 0, export: String::new(), nbd_uri: String::new(), vhost_user_socket: None };
    let socket =
        AttachSocket { path: "/s".into(), owner: String::new(), group: String::new(), mode: String::new() };
    actual.add("AttachDisk", &disk);
    actual.add("AttachSocket", &socket);
    let attach = Attach {
        vm: "web".parse().unwrap(),
        to: AttachTo::Qemu,
        via: AttachVia::Nbd,
        disks: vec![disk],
        socket: Some(socket),
        snippet: String::new(),
        access: Vec::new(),
        resume: Some(Vec::new()),
        resume_paused: true,
    };
    actual.add("Attach", &attach);
    let waiting = WaitingVm { vm: "web".parse().unwrap(), writes: 1 };
    let freeable = Freeable { vm: "web".parse().unwrap(), snapshot: "before".to_owned(), bytes_max: 1 };
    actual.add("WaitingVm", &waiting);
    actual.add("Freeable", &freeable);
    actual.add("Hung", &Hung { for_s: 8, doing: "renaming a file".to_owned() });
    let full = FullDatastore {
        datastore: "ds".parse().unwrap(),
        free_bytes: 0,
        total_bytes: 1,
        waiting: vec![waiting],
        freeable: vec![freeable],
    };
    actual.add("FullDatastore", &full);
    let vm: VmName = "web".parse().unwrap();
    let (client, access) = ("unix".to_owned(), ClientAccess::Writes);
    let client = VmClient { disk: Some(0), snapshot: None, client, access };
    actual.add("DatastoreClient", &DatastoreClient { vm: vm.clone(), client });
    let left = BinLeft { id: "0123456789abcdef".to_owned(), vm, cause: String::new() };
    actual.add("BinLeft", &left);
    exported_here(actual);
    backups::add(actual);
    actual.add("Core", &Core { number: 0, vms: 1, nbd_clients: 0, store_messages: 0, store_batches: 0 });
}

/// The answers of an export, and what is below disks.
fn exported_here(actual: &mut Actual) {
    let file = ExportedFile {
        path: "/a.ova".into(),
        disk: None,
        size_bytes: 512,
        file_bytes: 512,
        sha256: None,
        resumed_bytes: None,
    };
    actual.add("ExportedFile", &file);
    let (vm, files) = ("web".parse().unwrap(), vec![file]);
    actual.add("Exported", &Exported { vm, snapshot: None, format: ExportFormat::Ova, files });
    let from = DiskFrom::image("/a.raw");
    actual.add("DiskFrom", &from);
    let source = Source {
        datastore: "ds".parse().unwrap(),
        number: 1,
        uri: from.uri,
        format: ImageFormat::Raw,
        backup: None,
        trusted: false,
        copy: true,
        state: SourceState::Open,
        hash: None,
        message: None,
        size_bytes: 512,
        copied_bytes: 0,
        disks: Vec::new(),
        job: None,
    };
    actual.add("Source", &source);
}

/// The answers about repositories and backups.
#[test]
fn the_page_and_the_structs_have_the_same_fields() {
    let mut actual = Actual::default();
    runtime().unwrap().block_on(from_the_api(&mut actual));
    made_here(&mut actual);
    rebuilt_here(&mut actual);
    shown_by_the_demo(&mut actual);
    let documented = documented();
    let names = |types: Vec<&&'static str>| types.into_iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(names(documented.keys().collect()), names(actual.0.keys().collect()));
    for (name, fields) in &actual.0 {
        let fields: BTreeSet<&str> = fields.iter().map(String::as_str).collect();
        assert_eq!(documented[name], fields, "{name}");
    }
}

fn spelled(value: impl Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().unwrap().to_owned()
}

#[test]
fn every_word_is_on_the_page() {
    use Operation as O;
    let operations = [
        O::Take,
        O::CommitStart,
        O::Commit,
        O::Move,
        O::Scrub,
        O::CommitCancelled,
        O::CommitFailed,
        O::SpaceExhausted,
        O::SpaceReturned,
        O::Recovered,
        O::Revert,
        O::Discard,
        O::Reset,
        O::Remove,
        O::Disks,
        O::Home,
        O::WritesLost,
    ];
    for operation in operations {
        assert_eq!(spelled(operation), operation.as_str());
        assert!(PAGE.contains(&format!("`{}`", operation.as_str())), "{operation:?}");
    }
    use JobState as S;
    for state in [S::Queued, S::Running, S::Paused, S::Done, S::Failed, S::Cancelled] {
        assert_eq!(spelled(state), state.as_str());
        assert!(PAGE.contains(&format!("`{}`", state.as_str())), "{state:?}");
    }
    let modes = [DiskMode::Persistent, DiskMode::IndependentPersistent, DiskMode::IndependentNonpersistent];
    let mut words: Vec<String> = modes.into_iter().map(spelled).collect();
    for severity in [Severity::Damage, Severity::Warning, Severity::Note] {
        assert_eq!(spelled(severity), severity.as_str());
        words.push(spelled(severity));
    }
    for condition in [VmCondition::Open, VmCondition::Closed, VmCondition::Broken] {
        assert_eq!(spelled(condition), condition.as_str());
        words.push(spelled(condition));
    }
    words.extend(
        [AttachTo::Qemu, AttachTo::Libvirt, AttachTo::Proxmox, AttachTo::CloudHypervisor].map(spelled),
    );
    words.extend([AttachVia::Nbd, AttachVia::VhostUser].map(spelled));
    words.extend([
        spelled(Store::Native),
        spelled(Store::Redo),
        spelled(WhenFull::Wait),
        spelled(WhenFull::Error),
    ]);
    for word in words {
        assert!(PAGE.contains(&format!("`{word}`")), "{word}");
    }
}

#[test]
fn every_kind_of_error_stands_beside_its_exit_code() {
    use ErrorKind as K;
    for kind in [
        K::Failed,
        K::NoSpace,
        K::Cancelled,
        K::Unavailable,
        K::UnderWay,
        K::Invalid,
        K::Refused,
        K::Unsupported,
        K::Exists,
        K::NotFound,
        K::NoDescriptors,
        K::Unidentified,
        K::Forbidden,
        K::TooMany,
        K::Locked,
        K::Damaged,
    ] {
        let row = PAGE.lines().find(|line| line.starts_with(&format!("| {} |", kind.exit_code()))).unwrap();
        assert!(row.contains(&format!("`{}`", spelled(kind))), "{kind:?}: {row}");
    }
}

/// What the project promised before there was code.
#[test]
fn the_promised_fields_exist() {
    let documented = documented();
    for (name, fields) in [
        ("Disk", "id number slot store mode size_bytes nbd_uri vhost_user_socket descriptor layers"),
        ("Snapshot", "id name parent created current sealed"),
        ("Event", "time vm operation stun_us disks"),
        ("Job", "id operation state bytes_done bytes_total eta_s"),
    ] {
        for field in fields.split(' ') {
            assert!(documented[name].contains(field), "{name}.{field}");
        }
    }
    assert!(documented["Vm"].contains("disks") && documented["SnapshotTree"].contains("snapshots"));
}

#[test]
fn times_are_rfc_3339_in_utc_and_targets_are_as_documented() {
    let event = Event {
        id: 1,
        time: "2026-11-20T13:00:00.5+01:00".parse().unwrap(),
        vm: "web".parse().unwrap(),
        operation: Operation::Take,
        snapshot: None,
        stun_us: 1,
        frozen_us: 0,
        disks: vec![],
        message: None,
    };
    assert_eq!(serde_json::to_value(&event).unwrap()["time"], "2026-11-20T12:00:00.5Z");
    assert_eq!(serde_json::to_string(&CommitTarget::All).unwrap(), "\"all\"");
    let named = CommitTarget::Snapshot("before".parse().unwrap());
    assert_eq!(serde_json::to_string(&named).unwrap(), r#"{"snapshot":"before"}"#);
}
