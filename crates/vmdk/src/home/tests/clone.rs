//! Linked clones: their content, their records, and a power cut at every event of their creation.

use super::*;

const CLONE: &str = "/test1";

/// Opens the parent's home as the daemon does, with the whole datastore as a folder to search.
async fn parent(env: &Env) -> Home {
    let folders = Folders { search: vec![root(env)], ..Folders::default() };
    Home::new(folder(env).await, folders, GROWTH)
}

fn clone_folders(env: &Env) -> Folders {
    Folders { foreign: vec![env.open_root("/web").unwrap()], ..Folders::default() }
}

async fn clone_home(env: &Env) -> Home {
    Home::new(env.open_root(CLONE).unwrap(), clone_folders(env), GROWTH)
}

async fn make_clone(env: &Env, home: &Home) -> Result<Home> {
    home.clone_to(1, env.open_root(CLONE).unwrap(), clone_folders(env), "test1").await
}

/// Takes a snapshot 1 of what the guest has written.
async fn with_snapshot(env: &Env) -> VmState {
    let home = parent(env).await;
    let state = home.load().await.unwrap();
    home.touch("web.vmdk").await.unwrap();
    write(&*home.open("web.vmdk", true).await.unwrap(), 0, &[7; 512]).await.unwrap();
    let state = take_all(&home, &state, 1).await.unwrap();
    home.open("web.vmdk", true).await.unwrap().seal().await.unwrap();
    state
}

#[test]
fn a_clone_runs_on_the_snapshots_layers_and_its_parent_records_it() {
    let world = new_world(31);
    world.run(async |env| {
        let state = with_snapshot(&env).await;
        let home = parent(&env).await;
        let vmx = String::from_utf8(home.dir().read_file("web.vmx", 1 << 20).await.unwrap()).unwrap();
        assert!(!vmx.contains("uuid.bios"));
        let clone = make_clone(&env, &home).await.unwrap();
        let cloned = clone.load().await.unwrap();
        assert_eq!(clone_home(&env).await.load().await.unwrap(), cloned);
        assert_eq!(
            (cloned.name.as_str(), cloned.id == state.id, cloned.snapshots.len()),
            ("test1", false, 0)
        );
        let tops: Vec<_> = cloned.disks.iter().map(|d| (d.slot.as_str(), d.top.as_str())).collect();
        assert_eq!(tops, [("scsi0:0", "test1-000001.vmdk"), ("scsi0:1", "test1_1-000001.vmdk")]);
        let chain = clone.chain("test1-000001.vmdk").await.unwrap();
        assert_eq!((chain[0].name.as_str(), chain[0].foreign), ("/web/web.vmdk", true));
        let base = clone.open("/web/web.vmdk", true).await.unwrap();
        assert_eq!(read(&*base, 0..512).await.unwrap(), [7; 512]);
        assert!(!base.shape().writable);

        assert_eq!(home.load().await.unwrap(), state, "the parent is as it was");
        let layers: Vec<LayerName> = vec!["web.vmdk".into(), "web-000001.vmdk".into()];
        let dependants = home.dependants(&layers).await.unwrap();
        let expected = Dependant { layer: "web.vmdk".into(), who: "/test1/test1.vmx".into() };
        assert_eq!(dependants, [expected]);
        let vmsd = String::from_utf8(clone.dir().read_file("test1.vmsd", 1 << 20).await.unwrap()).unwrap();
        for line in [
            "cloneOf0 = \"/web/web.vmx\"",
            "numCloneOf = \"1\"",
            "sentinel0 = \"test1-000001.vmdk\"",
            "numSentinels = \"2\"",
        ] {
            assert!(vmsd.contains(line), "{line} is not in {vmsd}");
        }
        // Its snapshots are separate from the parent's.
        let cloned = take_all(&clone, &cloned, 1).await.unwrap();
        assert_eq!(cloned.disks[0].top, "test1-000002.vmdk");
        assert_eq!(clone.links().await.unwrap().len(), 6);
        assert_eq!(home.links().await.unwrap().len(), 4);
    });
}

#[test]
fn a_removed_clone_is_forgotten_and_an_unrecorded_clone_is_found() {
    let world = new_world(32);
    world.run(async |env| {
        with_snapshot(&env).await;
        let home = parent(&env).await;
        make_clone(&env, &home).await.unwrap();
        let note = async || {
            let vmsd = home.dir().read_file("web.vmsd", 1 << 20).await.unwrap();
            String::from_utf8(vmsd).unwrap().contains("snapshot0.clone0 = \"/test1/test1.vmx\"")
        };
        let layers: Vec<LayerName> = vec!["web.vmdk".into()];
        home.load().await.unwrap();
        assert!(note().await);
        let dir = env.open_root(CLONE).unwrap();
        dir.unlink("test1.vmx").await.unwrap();
        let dependants = home.dependants(&layers).await.unwrap();
        assert_eq!(dependants[0].who, "/test1/test1-000001.vmdk", "a link, though no VM");
        home.load().await.unwrap();
        assert!(!note().await);
        for name in dir.list().await.unwrap().iter().filter(|name| !name.ends_with('/')) {
            dir.unlink(name).await.unwrap();
        }
        assert!(home.dependants(&layers).await.unwrap().is_empty());
        assert!(home.dependants(&["web_1.vmdk".into()]).await.unwrap().is_empty());
    });
}

#[test]
fn a_clone_in_an_unsearched_folder_counts() {
    let world = new_world(33);
    world.run(async |env| {
        with_snapshot(&env).await;
        let home = home(&env).await;
        make_clone(&env, &home).await.unwrap();
        env.open_root(CLONE).unwrap().unlink("test1.vmx").await.unwrap();
        home.load().await.unwrap();
        let dependants = home.dependants(&["web.vmdk".into()]).await.unwrap();
        assert_eq!(dependants.len(), 1, "nothing says that it is gone");
    });
}

#[test]
fn a_refused_clone_leaves_nothing() {
    let world = new_world(34);
    world.run(async |env| {
        with_snapshot(&env).await;
        let home = parent(&env).await;
        let dir = env.open_root(CLONE).unwrap();
        let before = home.dir().read_file("web.vmsd", 1 << 20).await.unwrap();
        let blind = home.clone_to(1, dir.clone(), Folders::default(), "test1").await.err().unwrap();
        assert!(blind.to_string().contains("--allow-root"), "{blind}");
        let unknown = home.clone_to(9, dir.clone(), clone_folders(&env), "test1").await.err().unwrap();
        assert_eq!(unknown.kind, ErrorKind::NotFound);
        let bad = home.clone_to(1, dir.clone(), clone_folders(&env), "a/b").await.err().unwrap();
        assert_eq!(bad.kind, ErrorKind::Invalid);
        assert!(dir.list().await.unwrap().is_empty());
        assert_eq!(home.dir().read_file("web.vmsd", 1 << 20).await.unwrap(), before);
        let full = home.clone_to(1, home.dir().clone(), clone_folders(&env), "test1").await.err().unwrap();
        assert_eq!(full.kind, ErrorKind::Exists);
    });
}

#[test]
fn an_independent_disk_is_not_cloned() {
    let world = new_world(35);
    world.run(async |env| {
        let home = parent(&env).await;
        let mut state = home.load().await.unwrap();
        state.disks[1].mode = blk::manifest::DiskMode::IndependentPersistent;
        home.publish(&Change { next: state.clone(), ..Change::default() }).await.unwrap();
        let top = home.create_child("web.vmdk").await.unwrap().name().to_owned();
        let mut change = take(&state, 1, &[top]);
        change.next.snapshots[0].disks.truncate(1);
        home.publish(&change).await.unwrap();
        let clone = make_clone(&env, &home).await.unwrap();
        assert_eq!(clone.load().await.unwrap().disks.len(), 1);
        let notices = clone.take_notices();
        assert!(notices[0].contains("disk1 (scsi0:1)"), "{notices:?}");
    });
}

#[test]
fn a_power_cut_anywhere_in_cloning_leaves_a_whole_clone_or_none_and_the_parent_as_it_was() {
    let mut whole = BTreeSet::new();
    for nth in 1.. {
        let world = new_world(nth);
        let before = world.run(|env: Env| async move { with_snapshot(&env).await }).unwrap();
        world.cut_at(Cut::Event(nth));
        let finished = world.run(async |env| {
            let home = parent(&env).await;
            home.load().await.unwrap();
            make_clone(&env, &home).await.unwrap();
        });
        world.cancel_cut();
        world.power_cut();
        let exists =
            world.list(CLONE, View::Current).is_some_and(|names| names.contains(&"test1.vmx".into()));
        world.run(async move |env| {
            let home = parent(&env).await;
            assert_eq!(home.load().await.unwrap(), before, "cut at event {nth}");
            let vmsd = String::from_utf8(home.dir().read_file("web.vmsd", 1 << 20).await.unwrap()).unwrap();
            let layers: Vec<LayerName> = vec!["web.vmdk".into(), "web_1.vmdk".into()];
            let dependants = home.dependants(&layers).await.unwrap();
            assert_eq!(vmsd.contains("clone0"), exists, "cut at event {nth}: a note for each clone");
            if exists {
                assert_eq!(dependants.len(), 2, "cut at event {nth}");
                let clone = clone_home(&env).await;
                for disk in clone.load().await.unwrap().disks {
                    assert_eq!(clone.chain(&disk.top).await.unwrap().len(), 2);
                    clone.open(&disk.top, true).await.unwrap();
                    assert!(!links::read(&clone.folders, &disk.top).await.unwrap().is_prepared());
                }
            } else {
                assert!(dependants.is_empty(), "cut at event {nth}: {dependants:?}");
            }
        });
        whole.insert(exists);
        if finished.is_some() {
            assert!(exists);
            break;
        }
    }
    assert_eq!(whole.len(), 2, "both outcomes occur");
}
