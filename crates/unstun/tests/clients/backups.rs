//! Backups in a repository: increments, restores that run at once, files without a daemon, and refusals.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::{Datastore, copy};
use crate::guest::seed;
use crate::programs::tool;
use crate::space::until;
use crate::tools::{Twin, assert_same};

/// Not a multiple of a chunk.
const SIZE: u64 = (48 << 20) + 4096;

/// A repository beside a datastore.
struct Repo<'d> {
    datastore: &'d Datastore,
    folder: PathBuf,
    key: PathBuf,
}

impl<'d> Repo<'d> {
    fn new(datastore: &'d Datastore) -> Repo<'d> {
        let (folder, key) = (datastore.beside("backups"), datastore.beside("key"));
        let made = datastore.json(&format!(
            "repo init --repo {} --key-file {} --new-key",
            folder.display(),
            key.display()
        ));
        assert_eq!((&made["backups"], &made["keys"][0]["in_use"]), (&json!(0), &json!(true)), "{made}");
        Repo { datastore, folder, key }
    }

    fn with(&self, command: &str) -> String {
        format!("{command} --repo {} --key-file {}", self.folder.display(), self.key.display())
    }

    fn json(&self, command: &str) -> Value {
        self.datastore.json(&self.with(command))
    }

    fn fails(&self, command: &str) -> (i32, String) {
        self.datastore.fails(&self.with(command))
    }
}

fn snapshots(datastore: &Datastore, vm: &str) -> Vec<String> {
    let tree = datastore.json(&format!("snapshot tree {vm}"));
    let all = tree["snapshots"].as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn keep(twin: &Twin, datastore: &Datastore, name: &str) -> PathBuf {
    let path = datastore.beside(name);
    copy(&twin.path, &path);
    path
}

fn same_files(expected: &Path, found: &Path) {
    assert_same(expected, "raw", found.to_str().unwrap());
}

#[test]
fn backups_are_increments_and_each_is_whole() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let repo = Repo::new(&datastore);
    datastore.json(&format!("vm create web --disk {SIZE},8M"));
    let mut twin = Twin::called("disk0", &datastore, SIZE, seed());
    twin.scribble(&datastore.uri("web/disk0"), 15);
    let first = repo.json("backup web --note first");
    let before = keep(&twin, &datastore, "before.raw");
    tool(
        "qemu-io",
        &["-f", "raw", "-c", "write -P 5 1M 4k", "-c", "write -P 6 40M 128k", &datastore.uri("web/disk0")],
    );
    tool(
        "qemu-io",
        &["-f", "raw", "-c", "write -P 5 1M 4k", "-c", "write -P 6 40M 128k", twin.path.to_str().unwrap()],
    );
    let second = repo.json("backup web");
    assert_eq!(second["read_bytes"], json!(3 * (64 << 10)), "{second}");
    assert!(first["read_bytes"].as_u64() > second["read_bytes"].as_u64(), "{first}");
    assert_eq!(snapshots(&datastore, "web"), [second["snapshot"].as_str().unwrap()], "the last one is kept");
    // Without its snapshot, all is read and nothing is new.
    let snapshot = second["snapshot"].as_str().unwrap();
    datastore.json(&format!("snapshot commit web {snapshot} --yes"));
    let third = repo.json("backup web --no-keep");
    assert_eq!((&third["new_bytes"], &third["data_bytes"]), (&json!(0), &second["data_bytes"]), "{third}");
    assert_eq!(snapshots(&datastore, "web"), [""; 0]);
    // A snapshot that the user names stays, also if a backup has taken it.
    let kept = repo.json("backup web");
    let name = kept["snapshot"].as_str().unwrap();
    repo.json(&format!("backup web --snapshot {name}"));
    assert_eq!(snapshots(&datastore, "web"), [name]);
    datastore.json(&format!("snapshot commit web {name} --yes"));
    // A clone has what the repository has already.
    datastore.json("snapshot take web a");
    datastore.json("vm clone web@a twin");
    let cloned = repo.json("backup twin");
    assert_eq!((&cloned["new_bytes"], &cloned["vm"]), (&json!(0), &json!("twin")), "{cloned}");
    assert_eq!(repo.json("backup list").as_array().unwrap().len(), 6);
    assert_eq!(repo.json("backup list web").as_array().unwrap().len(), 5);
    // Each is whole, also after the first one has gone, and for a host without a daemon.
    repo.json(&format!("restore {} --into {}", first["backup"], datastore.beside("one").display()));
    same_files(&before, &datastore.beside("one/web-disk0.raw"));
    let pruned = repo.json(&format!("backup prune {}", first["backup"]));
    assert_eq!(
        (&pruned["removed"], &pruned["reclaimed_bytes"]),
        (&json!([first["backup"]]), &json!(0)),
        "{pruned}"
    );
    let (code, said) = repo.fails(&format!("backup show {}", first["backup"]));
    assert!(code == 4 && said.contains("unstun backup recall"), "{code}: {said}");
    repo.json(&format!("backup recall {}", first["backup"]));
    // One command never removes a backup and reclaims it.
    let pruned = repo.json(&format!("backup prune {} --grace 0s", first["backup"]));
    assert_eq!(pruned["gone"], json!(0), "{pruned}");
    repo.json(&format!("backup recall {}", first["backup"]));
    repo.json(&format!("backup prune {}", first["backup"]));
    let pruned = repo.json("backup prune --grace 0s");
    assert_eq!(pruned["gone"], json!(1), "{pruned}");
    let (code, said) = repo.fails(&format!("backup recall {}", first["backup"]));
    assert!(code == 4 && said.contains("space was reclaimed"), "{code}: {said}");
    daemon.stop();
    let second_place = datastore.beside("second");
    let (to, to_key) = (second_place.display(), datastore.beside("second.key"));
    datastore.json(&format!("repo init --repo {to} --key-file {} --new-key", to_key.display()));
    let copied = repo.json(&format!("backup copy --to {to} --to-key-file {}", to_key.display()));
    assert_eq!(copied.as_array().unwrap().len(), 4, "{copied}");
    let again = repo.json(&format!("backup copy --to {to} --to-key-file {}", to_key.display()));
    assert_eq!(again, json!([]));
    let dry = repo.json("backup prune --keep-last 1 --dry-run");
    assert_eq!(dry["removed"].as_array().unwrap().len(), 3, "{dry}");
    let verified = repo.json("backup verify");
    assert_eq!(
        (&verified["findings"], verified["backups"].as_array().unwrap().len()),
        (&json!([]), 5),
        "{verified}"
    );
    repo.json(&format!("restore web --into {}", datastore.beside("two").display()));
    same_files(&twin.path, &datastore.beside("two/web-disk0.raw"));
    let (code, said) = repo.fails(&format!("restore web --into {}", datastore.beside("two").display()));
    assert!(code == 3 && said.contains("exists already"), "{code}: {said}");
}

#[test]
fn an_older_snapshot_and_one_that_was_replaced_are_backed_up_as_they_are() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let repo = Repo::new(&datastore);
    datastore.json(&format!("vm create web --disk {SIZE}"));
    let mut twin = Twin::called("disk0", &datastore, SIZE, seed());
    twin.scribble(&datastore.uri("web/disk0"), 10);
    let old = keep(&twin, &datastore, "old.raw");
    datastore.json("snapshot take web old");
    twin.scribble(&datastore.uri("web/disk0"), 10);
    // The disk has grown, and has data beyond its former end.
    datastore.json("vm disk grow web/disk0 64M");
    datastore.json("vm open web");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 3 60M 1M", &datastore.uri("web/disk0")]);
    repo.json("backup web");
    repo.json("backup web --snapshot old --note old");
    repo.json(&format!(
        "restore web@{} --into {}",
        "2100-01-01T00:00:00Z",
        datastore.beside("new").display()
    ));
    let listed = repo.json("backup list");
    let backup = listed.as_array().unwrap().iter().find(|one| one["note"] == "old").unwrap();
    assert_eq!(backup["size_bytes"], json!(SIZE), "{backup}");
    repo.json(&format!("restore {} --into {}", backup["backup"], datastore.beside("restored").display()));
    same_files(&old, &datastore.beside("restored/web-disk0.raw"));
    // The snapshot that the next backup would be compared with is another one of the same name.
    let name = snapshots(&datastore, "web").into_iter().find(|name| name.starts_with("backup-")).unwrap();
    datastore.json(&format!("snapshot commit web {name} --yes"));
    tool("qemu-io", &["-f", "raw", "-c", "write -P 4 2M 2M", &datastore.uri("web/disk0")]);
    datastore.json(&format!("snapshot take web {name}"));
    let made = repo.json("backup web");
    repo.json(&format!("restore {} --into {}", made["backup"], datastore.beside("last").display()));
    assert_same(&datastore.beside("last/web-disk0.raw"), "raw", &datastore.uri("web/disk0"));
    daemon.stop();
}

#[test]
fn a_restored_vm_runs_before_its_content_has_arrived() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let repo = Repo::new(&datastore);
    datastore.json(&format!("vm create web --disk {SIZE},8M"));
    let mut twins = [(0, SIZE), (1, 8 << 20)].map(|(disk, bytes)| {
        let mut twin = Twin::called(&format!("disk{disk}"), &datastore, bytes, seed() + disk);
        twin.scribble(&datastore.uri(&format!("web/disk{disk}")), 12);
        twin
    });
    let made = repo.json("backup web");
    datastore.json("vm remove web --delete-disks --purge --yes");
    let restored = repo.json("restore web --run");
    assert_eq!((&restored["complete"], &restored["vm"]), (&json!(false), &json!("web")), "{restored}");
    for (disk, twin) in twins.iter_mut().enumerate() {
        let uri = datastore.uri(&format!("web/disk{disk}"));
        twin.assert_same_as("raw", &uri);
        twin.scribble(&uri, 8);
        twin.assert_same_as("raw", &uri);
    }
    datastore.json("snapshot take web a");
    until("the copy of the backup", || {
        let sources = datastore.json("source list");
        sources.as_array().unwrap().iter().all(|source| source["state"] == "copied").then_some(())
    });
    // A disk whose backup is needed is opened again with the daemon, and an increment is one over the restored VM.
    let other = repo.json(&format!("restore {} --as other", made["backup"]));
    assert_eq!(other["complete"], true, "{other}");
    daemon.kill();
    let daemon = datastore.start();
    for (disk, twin) in twins.iter().enumerate() {
        twin.assert_same_as("raw", &datastore.uri(&format!("web/disk{disk}")));
    }
    // A command decides whether a backup boots, and nothing of it stays.
    let command = |script: &str| {
        let line = repo.with("backup verify web --json");
        let mut command = datastore.command(&line.split_whitespace().collect::<Vec<_>>());
        command.args(["--boot", script]).output().unwrap()
    };
    let booted =
        command(r#"qemu-io -f raw -c "write -P 9 0 64k" "$UNSTUN_DISK0" && test -n "$UNSTUN_DISK1""#);
    assert!(booted.status.success(), "{booted:?}");
    let failed = command("exit 3");
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(failed.status.code() == Some(6) && said.contains("exit status: 3"), "{said}");
    assert_eq!(datastore.json("vm list").as_array().unwrap().len(), 2, "the VMs are removed");
    let again = repo.json("backup web");
    assert!(again["new_bytes"].as_u64() < made["new_bytes"].as_u64(), "{again}");
    let (code, said) = repo.fails("restore web");
    assert!(code == 3 && said.contains("web"), "{code}: {said}");
    daemon.stop();
}

#[test]
fn a_policy_backs_its_snapshots_up_and_says_what_it_could_not_do() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    datastore.json("vm create web --disk 8M");
    let create = "policy create nightly --schedule yearly --keep-last 1 --vm * --backup offsite";
    let (code, said) = datastore.fails(create);
    assert!(code == 4 && said.contains("repositories.toml does not exist"), "{code}: {said}");
    let repo = Repo::new(&datastore);
    let entry = format!("[offsite]\nplace = {:?}\nkey-file = {:?}\n", repo.folder, repo.key);
    fs::write(datastore.repositories(), entry).unwrap();
    let mut twin = Twin::called("disk0", &datastore, 8 << 20, seed());
    twin.scribble(&datastore.uri("web/disk0"), 8);
    let by_hand = repo.json("backup web --no-keep --note mine");
    datastore.json(create);
    let mut set = datastore.command(&["--json", "policy", "set", "nightly", "--backup-keep", "2 last"]);
    assert!(set.output().unwrap().status.success());
    let status = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        until(what, || Some(datastore.json("policy show nightly")).filter(is_so))
    };
    // A snapshot of another second.
    let apply = || {
        until("a take", || (datastore.json("policy apply nightly")["taken"] != json!([])).then_some(()));
    };
    for _ in 0..4 {
        apply();
        status("the backup", &|shown| shown["backups"]["done"] == 1);
    }
    // The oldest of the policy's own are removed, and no other; what the last one is compared with stays.
    until("the prune", || (repo.json("backup list web").as_array().unwrap().len() == 3).then_some(()));
    let listed = repo.json("backup list web");
    let notes: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["note"].as_str().unwrap()).collect();
    assert_eq!(notes, ["mine", "policy nightly", "policy nightly"]);
    assert_eq!((&listed[0]["backup"], &listed[2]["read_bytes"]), (&by_hand["backup"], &json!(0)), "{listed}");
    assert_eq!(snapshots(&datastore, "web").len(), 1);
    // The place is gone: the policy says so, has an alarm, and keeps the snapshot for later.
    let away = datastore.beside("away");
    fs::rename(&repo.folder, &away).unwrap();
    apply();
    let shown = status("the problem", &|shown| shown["problems"] != json!([]));
    let problem = &shown["problems"][0];
    assert_eq!((&problem["action"], &shown["backups"]["waiting"]), (&json!("backup"), &json!(1)), "{shown}");
    assert!(problem["cause"].as_str().unwrap().contains("no repository"), "{problem}");
    assert_eq!(snapshots(&datastore, "web").len(), 2, "the one before is compared with later");
    fs::rename(&away, &repo.folder).unwrap();
    daemon.kill();
    // A start tries again what had failed.
    let daemon = datastore.start();
    status("the backup after the start", &|shown| shown["backups"]["done"] == 1);
    until("the removal", || (snapshots(&datastore, "web").len() == 1).then_some(()));
    repo.json(&format!("restore web --into {}", datastore.beside("restored").display()));
    same_files(&twin.path, &datastore.beside("restored/web-disk0.raw"));
    daemon.stop();
}

#[test]
fn a_repository_that_is_away_is_an_alarm_and_no_wrong_data() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let repo = Repo::new(&datastore);
    datastore.json("vm create web --disk 8M");
    let mut twin = Twin::called("disk0", &datastore, 8 << 20, seed());
    twin.scribble(&datastore.uri("web/disk0"), 8);
    let made = repo.json("backup web");
    let from = |copy: &str| {
        let (folder, key) = (repo.folder.display(), repo.key.display());
        format!("from={folder},format=backup,backup={},key-file={key},copy={copy}", made["backup"])
    };
    datastore.json(&format!("vm create needs --disk {}", from("no")));
    // By its name, which the daemon resolves too.
    let entry = format!("[offsite]\nplace = {:?}\nkey-file = {:?}\n", repo.folder, repo.key);
    fs::write(datastore.repositories(), entry).unwrap();
    datastore.json("restore web --repo offsite --as other");
    twin.assert_same_as("raw", &datastore.uri("other/disk0"));
    let (code, said) = datastore.fails("backup list --repo elsewhere");
    assert!(code == 4 && said.contains("it has: offsite"), "{code}: {said}");
    datastore.json("vm remove other --delete-disks --purge --yes");
    daemon.stop();
    let away = datastore.beside("away");
    fs::rename(&repo.folder, &away).unwrap();
    let daemon = datastore.start();
    let source = until("the source to be away", || {
        let source = datastore.json("source list")[0].clone();
        (source["state"] == "unavailable").then_some(source)
    });
    assert!(source["message"].as_str().unwrap().contains("no repository"), "{source}");
    // The folder is made by no command that only reads.
    assert!(!repo.folder.exists(), "a look at a repository makes no folder");
    fs::rename(&away, &repo.folder).unwrap();
    until("the source to come back", || (datastore.json("source list")[0]["state"] == "open").then_some(()));
    twin.assert_same_as("raw", &datastore.uri("needs/disk0"));
    daemon.stop();
}

#[test]
fn what_is_wrong_with_a_repository_is_said() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    let repo = Repo::new(&datastore);
    datastore.json("vm create web --disk 8M");
    let other = datastore.beside("other.key");
    datastore.json(&format!(
        "repo init --repo {} --key-file {} --new-key",
        datastore.beside("others").display(),
        other.display()
    ));
    let folder = repo.folder.display().to_string();
    for (command, expected, says) in [
        (
            format!("backup web --repo {folder} --key-file {}", other.display()),
            3,
            "opens none of the repository's keys",
        ),
        (format!("backup web --repo {folder}"), 2, "--key-file FILE or --passphrase-file"),
        ("backup web".to_owned(), 2, "--repo PLACE"),
        (format!("backup web --repo {folder}/none --key-file {}", other.display()), 4, "unstun repo init"),
        ("backup web --repo nowhere".to_owned(), 4, "repositories.toml does not exist"),
        (format!("backup list --repo {folder} --key-file {folder}/repository"), 2, "no key file"),
        (format!("backup list --repo ftp://x/y --key-file {}", other.display()), 2, "no store of objects"),
        (repo.with("restore mail"), 4, "VM mail has no backup"),
        (repo.with("backup web --snapshot nothing"), 4, "no snapshot nothing"),
        (repo.with("repo init"), 3, "a repository already"),
    ] {
        let (code, said) = datastore.fails(&command);
        assert!(code == expected && said.contains(says), "{command}: {code}: {said}");
    }
    assert_eq!(snapshots(&datastore, "web"), [""; 0], "a backup that fails leaves no snapshot");
    let text = fs::read_to_string(&repo.key).unwrap();
    let shown = repo.json("repo show").to_string();
    assert!(!shown.contains(text.split(' ').nth(1).unwrap().trim()), "a key is part of no answer");
    // Damage.
    repo.json("backup web");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 5 1M 64k", &datastore.uri("web/disk0")]);
    let made = repo.json("backup web");
    let pack =
        fs::read_dir(repo.folder.join("packs")).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    fs::remove_dir_all(pack).unwrap();
    let (code, said) = repo.fails("backup verify");
    assert!(code == 6 && said.contains(&format!("backup {}", made["backup"])), "{code}: {said}");
    let (code, said) = repo.fails("backup web");
    assert!(code == 6 || code == 4, "{code}: {said}");
    daemon.stop();
}
