//! The REST API over a Unix socket, through the client the commands use and through bytes no client would send.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use api::client::Client;
use api::client::runtime;
use api::error::{ErrorBody, ErrorKind};
use api::listen::NbdListen;
use api::location::Datastore;
use api::name::VmName;
use api::*;
use unstun::rest::body::ROUTES;

use crate::support::{DELTA_BYTES, Own};

fn web() -> VmName {
    "web".parse().unwrap()
}

fn create(name: &str, sizes: &[u64]) -> VmCreate {
    VmCreate {
        name: name.parse().unwrap(),
        disks: sizes.iter().copied().map(DiskCreate::new).collect(),
        store: Store::Redo,
        when_full: WhenFull::Wait,
        datastore: None,
    }
}

fn take(name: &str) -> SnapshotTake {
    SnapshotTake { message: "text".to_owned(), ..SnapshotTake::named(name.parse().unwrap()) }
}

async fn with_snapshot(client: &Client) {
    client.vm_create(&create("web", &[1 << 30, 2 << 30])).await.unwrap();
    client.snapshot_take(&web(), &take("before")).await.unwrap();
}

#[test]
fn a_vm_lives_and_goes() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        let client = daemon.client();
        let vm = client.vm_create(&create("web", &[1 << 30, 2 << 30])).await.unwrap();
        // Other tests use the same file system.
        let shown = Vm { space: vm.space, ..client.vm_show(&web()).await.unwrap() };
        assert_eq!(shown, vm);
        assert_eq!(vm.disks[1].size_bytes, 2 << 30);
        assert_eq!(client.vm_list().await.unwrap()[0].size_bytes, Some(3 << 30));
        assert_eq!(client.status().await.unwrap().vms, 1);
        let again = client.vm_create(&create("web", &[512])).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Exists);
        let remove = VmRemove { delete_disks: true, purge: true, keep: false };
        assert!(client.remove_vm(&web(), &remove).await.unwrap().disks_deleted);
        assert_eq!(client.vm_show(&web()).await.unwrap_err().kind, ErrorKind::NotFound);
    });
}

#[test]
fn sizes_are_checked_behind_the_socket_too() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        for sizes in [&[][..], &[0], &[1000], &[u64::MAX - 511], &[512; 61]] {
            let error = daemon.client().vm_create(&create("web", sizes)).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{sizes:?}");
        }
    });
}

#[test]
fn limits_are_replaced_as_a_whole_and_checked_behind_the_socket_too() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        let client = daemon.client();
        client.vm_create(&create("web", &[1 << 30])).await.unwrap();
        let none = VmLimits::default();
        let both = VmLimits { iops: Some(2000), bandwidth_bytes_s: Some(100 << 20), ..none };
        assert_eq!(client.vm_set_limits(&web(), &both).await.unwrap().limits, both);
        for limits in [
            VmLimits { iops: Some(0), ..none },
            VmLimits { iops: Some(u64::MAX), ..none },
            VmLimits { iops_burst: Some(5000), ..none },
            VmLimits { bandwidth_bytes_s: Some(1), ..none },
            VmLimits { burst_s: 0, ..none },
            VmLimits { weight: 0, ..none },
        ] {
            let error = client.vm_set_limits(&web(), &limits).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{limits:?}");
            assert!(error.message.contains("found") && error.message.contains("expected"), "{error}");
        }
        assert_eq!(client.vm_show(&web()).await.unwrap().limits, both);
        let weight = VmLimits { weight: 500, ..none };
        assert_eq!(client.vm_set_limits(&web(), &weight).await.unwrap().limits, weight);
        let absent = client.vm_set_limits(&"absent".parse().unwrap(), &none).await.unwrap_err();
        assert_eq!(absent.kind, ErrorKind::NotFound);
    });
}

#[test]
fn a_snapshot_is_taken_previewed_and_committed() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        let client = daemon.client();
        with_snapshot(&client).await;
        let _guest = daemon.guest("web/disk0");
        let tree = client.snapshot_tree(&web()).await.unwrap();
        assert!(tree.snapshots[0].current && tree.snapshots[0].sealed);
        let target = CommitTarget::Snapshot("before".parse().unwrap());
        let preview = client.commit_preview(&web(), &target).await.unwrap();
        assert_eq!(preview.bytes_to_move, DELTA_BYTES);
        assert_eq!(
            preview.warning,
            "once the commit starts you cannot revert to before, even if you cancel it"
        );
        let job = client.snapshot_commit(&web(), &target).await.unwrap();
        assert_eq!(client.job_pause(job.id).await.unwrap().state, JobState::Paused);
        assert_eq!(client.job_limit(job.id, Some(1 << 20)).await.unwrap().limit_bytes_s, Some(1 << 20));
        assert_eq!(client.job_limit(job.id, None).await.unwrap().limit_bytes_s, None);
        assert_eq!(client.job_resume(job.id).await.unwrap().state, JobState::Running);
        while client.job_show(job.id).await.unwrap().state.is_open() {}
        assert_eq!(client.job_list().await.unwrap()[0].state, JobState::Done);
        assert_eq!(client.job_cancel(job.id).await.unwrap_err().kind, ErrorKind::Refused);
        assert!(client.snapshot_tree(&web()).await.unwrap().snapshots.is_empty());
        assert_eq!(
            client.commit_preview(&web(), &CommitTarget::All).await.unwrap_err().kind,
            ErrorKind::Refused
        );
    });
}

#[test]
fn disks_come_grow_change_and_go() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        let client = daemon.client();
        client.vm_create(&create("web", &[1 << 30])).await.unwrap();
        let wanted = DiskCreate {
            mode: DiskMode::IndependentPersistent,
            dir: Some(daemon.beside("fast")),
            ..DiskCreate::new(512)
        };
        assert_eq!(client.disk_add(&web(), &wanted).await.unwrap().mode, DiskMode::IndependentPersistent);
        let disk = "web/disk1".parse().unwrap();
        assert_eq!(client.grow_disk(&disk, 1024).await.unwrap().disk.size_bytes, 1024);
        let mode = DiskSetMode { mode: DiskMode::Persistent };
        assert_eq!(client.set_disk_mode(&disk, &mode).await.unwrap().mode, DiskMode::Persistent);
        assert!(client.remove_disk(&disk, true).await.unwrap().files_deleted);
        let missing = client.remove_disk(&"web/disk7".parse().unwrap(), false).await.unwrap_err();
        assert_eq!(missing.kind, ErrorKind::NotFound);
    });
}

#[test]
fn what_throws_data_away_is_previewed_and_names_who_is_in_the_way() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        let client = daemon.client();
        with_snapshot(&client).await;
        let guest = daemon.guest("web/disk0");
        let mut revert = Revert { snapshot: Some("before".parse().unwrap()), ..Revert::default() };
        let preview = client.revert_preview(&web(), &revert).await.unwrap();
        let tree = client.snapshot_tree(&web()).await.unwrap();
        assert_eq!((preview.bytes_lost, preview.clients[0].disk), (tree.snapshots[0].delta_bytes, Some(0)));
        assert!((DELTA_BYTES..DELTA_BYTES + (1 << 20)).contains(&preview.bytes_lost), "{preview:?}");
        let refused = client.snapshot_revert(&web(), &revert).await.unwrap_err();
        let who = format!("pid {} (", std::process::id());
        assert_eq!(refused.kind, ErrorKind::Refused);
        assert!(
            refused.message.contains(&who) && refused.message.contains("disk0 is attached by"),
            "{refused}"
        );
        revert.disconnect = true;
        assert_eq!(client.snapshot_revert(&web(), &revert).await.unwrap().target.as_deref(), Some("before"));
        let discard =
            Discard { snapshot: "before".parse().unwrap(), disconnect: true, purge: false, keep: false };
        assert_eq!(client.snapshot_discard(&web(), &discard).await.unwrap().operation, Operation::Discard);
        drop(guest);
        let nonpersistent =
            DiskCreate { mode: DiskMode::IndependentNonpersistent, ..DiskCreate::new(1 << 30) };
        let disk = client.disk_add(&web(), &nonpersistent).await.unwrap();
        let (_, export) = NbdListen::parse_uri(&disk.nbd_uri).unwrap();
        let _guest = daemon.guest(&export);
        assert_eq!(client.vm_reset(&web(), &Reset::default()).await.unwrap_err().kind, ErrorKind::Refused);
        let reset = Reset { disconnect: true, ..Reset::default() };
        assert_eq!(client.vm_reset(&web(), &reset).await.unwrap().operation, Operation::Reset);
    });
}

#[test]
fn events_can_be_asked_for_from_a_point_on() {
    let daemon = Own::start();
    runtime().unwrap().block_on(async {
        let client = daemon.client();
        with_snapshot(&client).await;
        client.snapshot_take(&web(), &take("second")).await.unwrap();
        let all = client.events(&web(), 0).await.unwrap();
        assert_eq!(all.len(), 2);
        let later = client.events(&web(), all[0].id).await.unwrap();
        assert_eq!(later, all[1..]);
    });
}

/// Sends `head` and `body` as they are; the status and the body of the answer.
fn raw(daemon: &Own, request_line: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    let length = body.len();
    write!(
        stream,
        "{request_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn every_failure_is_json_with_a_kind() {
    let daemon = Own::start();
    for (line, body, status, kind) in [
        ("GET /nowhere", "", 404, ErrorKind::NotFound),
        ("GET /api/v1/nothing", "", 404, ErrorKind::NotFound),
        ("DELETE /api/v1/status", "", 405, ErrorKind::Invalid),
        ("GET /api/v1/vms/absent", "", 404, ErrorKind::NotFound),
        ("GET /api/v1/vms/a%2Fb", "", 400, ErrorKind::Malformed),
        ("GET /api/v1/vms/%FF", "", 400, ErrorKind::Malformed),
        ("GET /api/v1/vms/..%2F..", "", 400, ErrorKind::Malformed),
        ("GET /api/v1/jobs/first", "", 400, ErrorKind::Malformed),
        ("GET /api/v1/jobs/7", "", 404, ErrorKind::NotFound),
        ("POST /api/v1/vms", "", 400, ErrorKind::Malformed),
        ("POST /api/v1/vms", "{", 400, ErrorKind::Malformed),
        ("POST /api/v1/vms", r#"{"name":"../x","disks":[],"store":"redo"}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms", r#"{"name":"x","disks":[],"store":"native"}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms", r#"{"name":"x","disks":[],"store":"redo","hidden":1}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms/web/snapshots", r#"{"name":"a","message":"x\ny"}"#, 422, ErrorKind::Invalid),
        ("PUT /api/v1/jobs/1/limit", r#"{"limit_bytes_s":0}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/import", r#"{"path":"srv/web"}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/import", r#"{"path":"/srv/web","allow_roots":["/a\nb"]}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms/web/disks", r#"{"size_bytes":512,"dir":"fast"}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms/web/disks", r#"{"size_bytes":512,"mode":"fast"}"#, 422, ErrorKind::Invalid),
        ("PUT /api/v1/vms/web/disks/0/size", r#"{"size_bytes":513}"#, 422, ErrorKind::Invalid),
        ("PUT /api/v1/vms/web/disks/first/size", r#"{"size_bytes":512}"#, 400, ErrorKind::Malformed),
        ("DELETE /api/v1/vms/web/disks/0?delete_files=perhaps", "", 400, ErrorKind::Malformed),
        ("POST /api/v1/vms/web/revert", r#"{"snapshot":""}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms/web/revert", r#"{"take_first":"a/b"}"#, 422, ErrorKind::Invalid),
        ("POST /api/v1/vms/web/discard", "{}", 422, ErrorKind::Invalid),
        ("POST /api/v1/vms/absent/discard", r#"{"snapshot":"a"}"#, 404, ErrorKind::NotFound),
        ("PUT /api/v1/vms/web/snapshot-dir", r#"{"dir":"fast"}"#, 422, ErrorKind::Invalid),
        ("GET /api/v1/vms/web/events?after=x", "", 400, ErrorKind::Malformed),
    ] {
        let (answered, text) = raw(&daemon, line, body);
        assert_eq!(answered, status, "{line} {body}: {text}");
        let parsed: ErrorBody = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{line}: {e}: {text}"));
        assert_eq!((parsed.error.kind, parsed.error.exit_code), (kind, kind.exit_code()), "{line} {body}");
    }
}

#[test]
fn every_named_route_is_one_and_parses_its_body() {
    let daemon = Own::start();
    for (route, _) in ROUTES {
        let path = route
            .replace("{vm}", "web")
            .replace("{number}", "0")
            .replace("{id}", "1")
            .replace("{name}", "n")
            .replace("{alarm}", "latency:web");
        let (status, text) = raw(&daemon, &path.replacen(' ', " /api/v1", 1), "7");
        assert!(status == 422 && text.contains("the request's body"), "{route}: {status} {text}");
    }
    let (status, _) = raw(&daemon, "POST /api/v1/vms/web/snapshot", "7");
    assert_eq!(status, 404, "a route that is none");
}

#[test]
fn an_endless_body_is_not_read() {
    let daemon = Own::start();
    let (status, _) = raw(&daemon, "POST /api/v1/vms", &" ".repeat(300 << 10));
    assert_eq!(status, 400);
}

#[test]
fn only_the_owner_may_connect() {
    let daemon = Own::start();
    assert_eq!(daemon.socket().metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn without_a_daemon_the_error_names_the_datastore_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let datastore = Datastore::for_client(Some(folder.path())).unwrap();
    let error = runtime().unwrap().block_on(Client::new(&datastore).status()).unwrap_err();
    assert_eq!((error.kind, error.exit_code()), (ErrorKind::Unavailable, 1));
    let shown = datastore.root().to_str().unwrap();
    assert!(error.message.contains(&format!("unstun up --datastore {shown}")), "{error}");
}
