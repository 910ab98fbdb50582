//! A home in the simulated world: the content of its files after each step, and after a power cut at every event of
//! one.

use blk::Env;
use blk::manifest::{FoldState, SnapshotState};
use sim::{Action, Cut, Fault, OpKind, Options, SimWorld, View};

use super::*;
use crate::testing::{flush, read, root, write};

mod cache;
mod clone;
mod faults;
mod folders;
mod import;
mod tree;

const DISK_BYTES: u64 = 3 << 20;
const GROWTH: Growth = Growth { step_bytes: 16 << 10, chunk_bytes: 16 << 10 };

async fn folder(env: &Env) -> Dir {
    root(env).open_dir("web", false).await.unwrap()
}

async fn home(env: &Env) -> Home {
    home_in(env, &[]).await
}

/// Opens the home with further own folders.
async fn home_in(env: &Env, own: &[&str]) -> Home {
    let own = own.iter().map(|path| env.open_root(path).unwrap()).collect();
    Home::new(folder(env).await, Folders { own, ..Folders::default() }, GROWTH)
}

/// Changes a file as another program would, while the home is not served: the next start would find it.
async fn by_hand(home: &Home, name: &str, content: &[u8]) {
    home.dir().replace_file(name, content).await.unwrap();
    home.folders.cache.clear();
}

fn new_world(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed, Options::default());
    world.run(async |env| {
        let dir = root(&env).open_dir("web", true).await.unwrap();
        root(&env).sync().await.unwrap();
        let vm = NewVm::new("web", &[DISK_BYTES, 512 * 9]);
        let home = Home::create(dir, Folders::default(), GROWTH, vm).await.unwrap();
        // Assigns the identities, so that later loads change nothing.
        home.load().await.unwrap();
    });
    world
}

/// Returns the change of a take whose children are `tops`.
fn take(state: &VmState, uid: u32, tops: &[String]) -> Change {
    let mut next = state.clone();
    let frozen = state.disks.iter().map(|disk| (disk.number, disk.top.clone())).collect();
    next.snapshots.push(SnapshotState {
        id: u128::from(uid),
        uid,
        parent: state.current,
        name: format!("snapshot {uid}"),
        description: String::new(),
        created_unix_us: 1,
        disks: frozen,
    });
    next.current = Some(u128::from(uid));
    next.last_uid = uid;
    next.disks.iter_mut().zip(tops).for_each(|(disk, top)| disk.top = top.clone());
    Change { next, ..Change::default() }
}

async fn take_all(home: &Home, state: &VmState, uid: u32) -> Result<VmState> {
    let mut tops = Vec::new();
    for disk in &state.disks {
        tops.push(home.create_child(&disk.top).await?.name().to_owned());
    }
    let change = take(state, uid, &tops);
    home.publish(&change).await?;
    Ok(change.next)
}

async fn evidence(env: Env) -> (VmState, Vec<String>) {
    evidence_in(env, &[]).await
}

/// Returns every file in the folders, and opens every layer of the tops' chains.
async fn evidence_in(env: Env, own: &[&str]) -> (VmState, Vec<String>) {
    let home = home_in(&env, own).await;
    let state = home.load().await.unwrap();
    assert_eq!(home.load().await.unwrap(), state, "a second load finds nothing to do");
    for disk in &state.disks {
        for info in home.chain(&disk.top).await.unwrap() {
            home.open(&info.name, true).await.unwrap();
        }
    }
    let mut names = folder(&env).await.list().await.unwrap();
    for path in own {
        let others = env.open_root(path).unwrap().list().await.unwrap();
        let others = others.into_iter().filter(|name| name != ".unstun-names");
        names.extend(others.map(|name| format!("{path}/{name}")));
    }
    (state, names.into_iter().filter(|name| !name.ends_with('/')).collect())
}

#[test]
fn a_new_vm_is_what_was_asked_for() {
    let world = new_world(1);
    let (state, names) = world.run(evidence).unwrap();
    assert_eq!(names, ["web-flat.vmdk", "web.vmdk", "web.vmsd", "web.vmx", "web_1-flat.vmdk", "web_1.vmdk"]);
    let disks: Vec<_> =
        state.disks.iter().map(|d| (d.number, d.slot.as_str(), d.size_bytes, d.top.as_str())).collect();
    assert_eq!(disks, [(0, "scsi0:0", DISK_BYTES, "web.vmdk"), (1, "scsi0:1", 4608, "web_1.vmdk")]);
    assert_eq!(world.file_size("web/web-flat.vmdk", View::Durable), Some(DISK_BYTES));
    assert_eq!(world.allocated_bytes("web/web-flat.vmdk"), Some(0), "thin");
}

#[test]
fn invalid_names_and_sizes_are_refused() {
    let world = SimWorld::new(1, Options::default());
    world.run(async |env| {
        let cases: [(&str, &[u64], &str); 5] = [
            ("a/b", &[512], "VM name"),
            ("web", &[0], "a disk of 0 bytes"),
            ("web", &[513], "a disk of 513 bytes"),
            ("web", &[65 << 40], "64 TiB"),
            ("web", &[512; 61], "at most 60"),
        ];
        for (index, (name, disk_bytes, message)) in cases.into_iter().enumerate() {
            let dir = root(&env).open_dir(&format!("case{index}"), true).await.unwrap();
            let error = Home::create(dir.clone(), Folders::default(), GROWTH, NewVm::new(name, disk_bytes))
                .await
                .err()
                .unwrap();
            assert!(error.to_string().contains(message), "{error}");
            assert!(dir.list().await.unwrap().is_empty());
            assert_eq!(
                Home::new(dir, Folders::default(), GROWTH).load().await.unwrap_err().kind,
                ErrorKind::NotFound
            );
        }
    });
}

#[test]
fn take_read_and_commit() {
    let world = new_world(2);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let base = home.open("web.vmdk", true).await.unwrap();
        home.touch("web.vmdk").await.unwrap();
        write(&*base, 0, &[1; 4096]).await.unwrap();
        let state = take_all(&home, &state, 1).await.unwrap();
        assert_eq!(home.load().await.unwrap(), state);
        let chain = home.chain("web-000001.vmdk").await.unwrap();
        let names: Vec<_> = chain.iter().map(|info| (info.name.as_str(), info.parent.as_deref())).collect();
        assert_eq!(names, [("web.vmdk", None), ("web-000001.vmdk", Some("web.vmdk"))]);
        assert_eq!((chain[0].format.as_str(), chain[1].format.as_str()), ("vmfs", "vmfsSparse"));
        assert_eq!(chain[0].allocated_bytes, 4096);

        // A second take; then the first one's deltas are folded, and the parents of the second one's change.
        let state = take_all(&home, &state, 2).await.unwrap();
        for (source, target) in [("web-000001.vmdk", "web.vmdk"), ("web_1-000001.vmdk", "web_1.vmdk")] {
            home.touch(source).await.unwrap();
            home.touch(target).await.unwrap();
        }
        let mut next = state.clone();
        next.snapshots.remove(0);
        next.snapshots[0].parent = None;
        next.snapshots[0].disks = vec![(0, "web.vmdk".into()), (1, "web_1.vmdk".into())];
        let change = Change {
            next: next.clone(),
            reparent: vec![
                ("web-000002.vmdk".into(), "web.vmdk".into()),
                ("web_1-000002.vmdk".into(), "web_1.vmdk".into()),
            ],
            remove: vec!["web-000001.vmdk".into(), "web_1-000001.vmdk".into()],
            ..Change::default()
        };
        home.publish(&change).await.unwrap();
        assert_eq!(home.load().await.unwrap(), next);
        assert_eq!(home.chain("web-000002.vmdk").await.unwrap().len(), 2);
    });
    let (_, names) = world.run(evidence).unwrap();
    assert!(!names.iter().any(|name| name.contains("000001")), "{names:?}");
}

#[test]
fn a_child_that_was_published_is_never_debris() {
    let world = new_world(9);
    let vmx = world.read_file("web/web.vmx", View::Durable).unwrap();
    let vmsd = world.read_file("web/web.vmsd", View::Durable).unwrap();
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        take_all(&home, &state, 1).await.unwrap();
        assert!(!links::read(&home.folders, "web-000001.vmdk").await.unwrap().is_prepared());
    });
    // Old configurations are restored by hand; the deltas contain data nevertheless.
    world.write_file("web/web.vmx", &vmx);
    world.write_file("web/web.vmsd", &vmsd);
    let (state, names) = world.run(evidence).unwrap();
    assert_eq!(state.disks[0].top, "web.vmdk");
    assert!(names.contains(&"web-000001-delta.vmdk".to_owned()), "{names:?}");
}

#[test]
fn a_vm_that_lost_its_id_gets_the_one_its_links_carry() {
    let world = new_world(10);
    world.run(async |env| {
        let state = home(&env).await.load().await.unwrap();
        let state = take_all(&home(&env).await, &state, 1).await.unwrap();
        let dir = folder(&env).await;
        let vmx = String::from_utf8(dir.read_file("web.vmx", 1 << 20).await.unwrap()).unwrap();
        let lines: Vec<&str> = vmx.lines().filter(|line| !line.contains("unstun.id")).collect();
        dir.replace_file("web.vmx", (lines.join("\n") + "\n").as_bytes()).await.unwrap();
        assert_eq!(home(&env).await.load().await.unwrap(), state);
    });
}

#[test]
fn a_touch_invalidates_foreign_children_and_not_the_homes_own() {
    let world = new_world(3);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let cid = async || links::read(&home.folders, "web.vmdk").await.unwrap().cid();
        let first = cid().await;
        take_all(&home, &state, 1).await.unwrap();
        let foreign = links::read(&home.folders, "web-000001.vmdk").await.unwrap().to_bytes();
        home.touch("web.vmdk").await.unwrap();
        let second = cid().await;
        assert_ne!(first, second);
        home.touch("web.vmdk").await.unwrap();
        assert_eq!(cid().await, second, "no child has used this one yet");
        assert_eq!(home.chain("web-000001.vmdk").await.unwrap().len(), 2);
        home.dir().replace_file("elsewhere.vmdk", &foreign).await.unwrap();
        let error = home.chain("elsewhere.vmdk").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Damaged);
        assert!(error.to_string().contains(&format!("parentCID is {first:08x}, but the CID of")), "{error}");
    });
}

#[test]
fn broken_chains_are_refused_with_file_and_field() {
    let world = new_world(4);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        take_all(&home, &state, 1).await.unwrap();
        let text = String::from_utf8(links::read(&home.folders, "web-000001.vmdk").await.unwrap().to_bytes())
            .unwrap();
        let cases = [
            (
                text.replace("\"web.vmdk\"", "\"gone.vmdk\""),
                "parentFileNameHint \"gone.vmdk\" cannot be opened",
            ),
            (text.replace("\"web.vmdk\"", "\"../other/gone.vmdk\""), "nothing there is opened"),
            (text.replace("\"web.vmdk\"", "\"bad.vmdk\""), "is its own ancestor"),
            (text.replace("RW 6144", "RW 6145"), "the disk has 6145 sectors, but 6144 in its parent"),
        ];
        for (bad, message) in cases {
            let bad = if message.contains("ancestor") {
                let own = bad.split("parentCID=").nth(1).unwrap()[..8].to_owned();
                let cid = bad.split("\nCID=").nth(1).unwrap()[..8].to_owned();
                bad.replace(&format!("\nCID={cid}"), &format!("\nCID={own}"))
            } else {
                bad
            };
            by_hand(&home, "bad.vmdk", bad.as_bytes()).await;
            let error = home.chain("bad.vmdk").await.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        // A path into a folder that was moved; the file is beside the child.
        let moved = text.replace("\"web.vmdk\"", "\"/vmfs/volumes/5/web/web.vmdk\"");
        by_hand(&home, "moved.vmdk", moved.as_bytes()).await;
        assert_eq!(home.chain("moved.vmdk").await.unwrap().len(), 2);
        let outside = text.replace("web-000001-delta", "../../etc/passwd");
        by_hand(&home, "outside.vmdk", outside.as_bytes()).await;
        assert_eq!(home.open("outside.vmdk", false).await.err().unwrap().kind, ErrorKind::Refused);
        let other = text.replace("VMFSSPARSE", "VMFSRDM");
        by_hand(&home, "other.vmdk", other.as_bytes()).await;
        assert_eq!(home.open("other.vmdk", false).await.err().unwrap().kind, ErrorKind::Unsupported);
    });
}

#[test]
fn layers_in_use_are_not_removed() {
    let world = new_world(5);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let state = take_all(&home, &state, 1).await.unwrap();
        let remove =
            |name: &str| Change { next: state.clone(), remove: vec![name.into()], ..Change::default() };
        for name in ["web-000001.vmdk", "web.vmdk"] {
            assert_eq!(home.publish(&remove(name)).await.unwrap_err().kind, ErrorKind::Refused);
        }
        let mut no_snapshot = remove("web.vmdk");
        no_snapshot.next.snapshots.clear();
        no_snapshot.next.current = None;
        let error = home.publish(&no_snapshot).await.unwrap_err();
        assert!(error.to_string().contains("it is the parent of \"web-000001.vmdk\""), "{error}");
        assert_eq!(home.discard_child("web-000001.vmdk").await.unwrap_err().kind, ErrorKind::Refused);
        // A second descriptor of the base's data: neither it nor that data is removed with the first.
        let base = links::read(&home.folders, "web.vmdk").await.unwrap().to_bytes();
        by_hand(&home, "twin.vmdk", &base).await;
        let error = home.publish(&remove("twin.vmdk")).await.unwrap_err();
        assert!(
            error.to_string().contains("\"web-flat.vmdk\" is to be removed, but it holds data of"),
            "{error}"
        );
        let text = String::from_utf8(base).unwrap().replace("web-flat.vmdk", "web.vmx");
        by_hand(&home, "twin.vmdk", text.as_bytes()).await;
        assert_eq!(home.publish(&remove("twin.vmdk")).await.unwrap_err().kind, ErrorKind::Damaged);
        assert_eq!(home.load().await.unwrap(), state);
    });
}

#[test]
fn an_unpublished_child_is_removed_by_a_call_or_at_the_next_load() {
    let world = new_world(6);
    let before = world.list("web", View::Current).unwrap();
    world.run(async |env| {
        let home = home(&env).await;
        let first = home.create_child("web.vmdk").await.unwrap().name().to_owned();
        let second = home.create_child("web.vmdk").await.unwrap();
        assert_eq!((first.as_str(), second.name()), ("web-000001.vmdk", "web-000002.vmdk"));
        home.load().await.unwrap();
        home.discard_child(&first).await.unwrap();
        assert!(home.chain(second.name()).await.is_ok(), "this session's own is not debris");
    });
    let (_, names) = world.run(evidence).unwrap();
    assert_eq!(names, before.into_iter().filter(|name| !name.ends_with('/')).collect::<Vec<_>>());
}

/// Cuts the power at each event of `step` in turn, with several seeds, and checks what the next boot finds.
fn cut_everywhere(
    own: &'static [&'static str],
    prepare: impl AsyncFn(Home) -> VmState + Copy + 'static,
    step: impl AsyncFn(Home, VmState) -> Result<VmState> + Copy + 'static,
) {
    let mut states = BTreeSet::new();
    for nth in 1.. {
        let world = new_world(nth);
        let look = |env: Env| evidence_in(env, own);
        let before = world.run(async move |env| prepare(home_in(&env, own).await).await).unwrap();
        let old_names = world.run(look).unwrap().1;
        world.cut_at(Cut::Event(nth));
        let loaded = before.clone();
        let finished = world.run(async move |env| step(home_in(&env, own).await, loaded).await.unwrap());
        world.cancel_cut();
        world.power_cut();
        let (state, names) = world.run(look).unwrap();
        assert_eq!(world.run(look).unwrap(), (state.clone(), names.clone()));
        let is_old = state == before;
        states.insert(is_old);
        if is_old {
            assert_eq!(names, old_names, "cut at event {nth}: an old state with its old files");
            assert!(finished.is_none(), "cut at event {nth}: a finished change was lost");
        }
        assert!(!names.iter().any(|name| name.ends_with(".unstun-tmp")), "cut at event {nth}: {names:?}");
        if finished.is_some() {
            break;
        }
    }
    assert_eq!(states.len(), 2, "both outcomes occur");
}

#[test]
fn a_power_cut_anywhere_in_a_take_leaves_the_old_vm_or_the_new_one() {
    cut_everywhere(
        &[],
        async |home| home.load().await.unwrap(),
        async |home, state| take_all(&home, &state, 1).await,
    );
}

#[test]
fn a_power_cut_anywhere_in_the_end_of_a_commit_leaves_one_of_the_two_chains() {
    let prepare = async |home: Home| {
        let state = home.load().await.unwrap();
        let mut state = take_all(&home, &state, 1).await.unwrap();
        state.folds.push(FoldState { disk: 0, layer: state.disks[0].top.clone(), job: 1, held: false });
        state.last_job = 1;
        state.snapshots.clear();
        state.current = None;
        home.publish(&Change { next: state.clone(), ..Change::default() }).await.unwrap();
        state
    };
    let step = async |home: Home, state: VmState| {
        home.touch("web-000001.vmdk").await?;
        home.touch("web.vmdk").await?;
        let mut next = state.clone();
        next.disks[0].top = "web.vmdk".into();
        next.folds.clear();
        let change =
            Change { next: next.clone(), remove: vec!["web-000001.vmdk".into()], ..Change::default() };
        home.publish(&change).await?;
        Ok(next)
    };
    cut_everywhere(&[], prepare, step);
}

#[test]
fn a_flat_disk_of_several_extents() {
    let world = SimWorld::new(8, Options::default());
    let text = "version=1\nCID=1\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentFlat\"\n\
        RW 8 FLAT \"a\" 0\nRW 8 ZERO\nRDONLY 8 FLAT \"b\" 2\nRW 8 FLAT \"a\" 8\n";
    world.write_file("web/d.vmdk", text.as_bytes());
    world.write_file("web/a", &[[1; 4096], [2; 4096]].concat());
    world.write_file("web/b", &[[9; 1024], [3; 1024], [3; 1024], [3; 1024], [3; 1024]].concat());
    world.run(async |env| {
        let home = home(&env).await;
        let disk = home.open("d.vmdk", false).await.unwrap();
        let content = read(&*disk, 0..16384).await.unwrap();
        assert_eq!(content, [[1; 4096], [0; 4096], [3; 4096], [2; 4096]].concat());
        assert_eq!(read(&*disk, 3584..4608).await.unwrap(), [[1; 512], [0; 512]].concat());
        assert!(home.open("d.vmdk", true).await.err().unwrap().to_string().contains("cannot be written"));
        assert_eq!(disk.check().await.unwrap(), Vec::<String>::new());
        flush(&*disk).await.unwrap();
    });
    world.write_file("web/b", &[9; 1024]);
    world.run(async |env| {
        let error = home(&env).await.open("d.vmdk", false).await.err().unwrap();
        assert!(error.to_string().contains("the length is 1024 bytes, expected at least 5120"), "{error}");
    });
}
