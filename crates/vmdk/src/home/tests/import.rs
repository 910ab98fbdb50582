//! An imported VMware VM: its folder stays unchanged, byte for byte, also after a power cut.

use super::*;

const OURS: &str = "/ours";

/// Returns a folder as ESXi leaves one: absolute paths of another host, no identities of unstun, a delta, a snapshot.
fn vmware_folder(seed: u64) -> SimWorld {
    let world = new_world(seed);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        home.touch("web.vmdk").await.unwrap();
        let base = home.open("web.vmdk", true).await.unwrap();
        write(&*base, 512, &[5; 512]).await.unwrap();
        flush(&*base).await.unwrap();
        take_all(&home, &state, 1).await.unwrap();
    });
    for (name, edit) in [
        ("web.vmx", ("\"web-000001.vmdk\"", "\"/vmfs/volumes/5f/web/web-000001.vmdk\"")),
        ("web.vmsd", ("\"web.vmdk\"", "\"/vmfs/volumes/5f/web/web.vmdk\"")),
        ("web-000001.vmdk", ("\"web.vmdk\"", "\"/vmfs/volumes/5f/web/web.vmdk\"")),
    ] {
        let path = format!("web/{name}");
        let text = String::from_utf8(world.read_file(&path, View::Durable).unwrap()).unwrap();
        let lines = text.lines().filter(|line| !line.contains("unstun"));
        let mut text = lines.collect::<Vec<_>>().join("\n").replace(edit.0, edit.1) + "\n";
        if name == "web.vmx" {
            text.push_str("nvram = \"web.nvram\"\nuuid.bios = \"56 4d\"\nworkingDir = \".\"\n");
        }
        if name == "web.vmsd" {
            text.push_str("snapshot0.filename = \"web-Snapshot1.vmsn\"\nsnapshot0.clone0 = \"../x/x.vmx\"\n");
        }
        world.write_file(&path, text.as_bytes());
    }
    world.write_file("web/web.nvram", b"variables");
    world.write_file("web/web-Snapshot1.vmsn", b"state");
    world.run(async |env| {
        let home = folder(&env).await;
        let private = home.open_dir(OWN_FOLDER, false).await.unwrap();
        for name in private.list().await.unwrap() {
            private.unlink(&name).await.unwrap();
        }
        private.sync().await.unwrap();
        home.remove_dir(OWN_FOLDER).await.unwrap();
        home.sync().await.unwrap();
    });
    world
}

/// Returns every file of the folder with its content.
fn content(world: &SimWorld) -> Vec<(String, Vec<u8>)> {
    let names = world.list("web", View::Current).unwrap();
    names
        .into_iter()
        .map(|name| {
            let bytes = world.read_file(&format!("web/{name}"), View::Current).unwrap_or_default();
            (name, bytes)
        })
        .collect()
}

fn folders(env: &Env) -> Folders {
    Folders { foreign: vec![env.open_root("/web").unwrap()], ..Folders::default() }
}

async fn ours(env: &Env) -> Home {
    Home::new(env.open_root(OURS).unwrap(), folders(env), GROWTH)
}

async fn import(env: &Env) -> Result<Home> {
    let source = home(env).await;
    Home::import(&source, env.open_root(OURS).unwrap(), folders(env), GROWTH, "mine").await
}

#[test]
fn an_import_writes_beside_the_only_copy() {
    let world = vmware_folder(41);
    let before = content(&world);
    world.run(async |env| {
        let found = home(&env).await.read().await.unwrap();
        assert_eq!((found.name.as_str(), found.disks[0].top.as_str()), ("web", "web-000001.vmdk"));
        let home = import(&env).await.unwrap();
        let state = home.load().await.unwrap();
        assert_eq!(ours(&env).await.load().await.unwrap(), state);
        assert_eq!((state.name.as_str(), state.last_uid), ("mine", 2));
        let tops: Vec<_> = state.disks.iter().map(|d| d.top.as_str()).collect();
        assert_eq!(tops, ["web-000002.vmdk", "web_1-000002.vmdk"]);
        let [old, new] = &state.snapshots[..] else { panic!("{:?}", state.snapshots) };
        assert_eq!((old.name.as_str(), &old.disks[0]), ("snapshot 1", &(0, "/web/web.vmdk".to_owned())));
        assert_eq!(
            (new.name.as_str(), new.parent, state.current),
            ("as-imported", Some(old.id), Some(new.id))
        );
        assert_eq!(new.disks[0], (0, "/web/web-000001.vmdk".to_owned()));
        assert_eq!(home.dir().read_file("web.nvram", 99).await.unwrap(), b"variables");
        let vmx = String::from_utf8(home.dir().read_file("mine.vmx", 1 << 20).await.unwrap()).unwrap();
        assert!(vmx.contains("uuid.bios") && !vmx.contains("workingDir"), "{vmx}");
        let vmsd = String::from_utf8(home.dir().read_file("mine.vmsd", 1 << 20).await.unwrap()).unwrap();
        assert!(
            vmsd.contains("filename = \"/web/web-Snapshot1.vmsn\"") && !vmsd.contains("clone0"),
            "{vmsd}"
        );
        // The whole chain, and the guest's data at its base.
        let chain = home.chain("web-000002.vmdk").await.unwrap();
        assert_eq!(chain.iter().map(|info| info.foreign).collect::<Vec<_>>(), [true, true, false]);
        let base = home.open(&chain[0].name, true).await.unwrap();
        assert_eq!(read(&*base, 512..1024).await.unwrap(), [5; 512]);
        // A revert to the imported state: its disks are known.
        let kept = home.disks_at(new.id).await.unwrap().unwrap();
        let kept: Vec<_> = kept.iter().map(|d| (d.number, d.top.as_str())).collect();
        assert_eq!(kept, [(0, "/web/web-000001.vmdk"), (1, "/web/web_1-000001.vmdk")]);
        assert!(home.disks_at(old.id).await.unwrap().is_none(), "a snapshot of VMware's");
        // The name is removed; VMware's files of its own snapshot stay.
        let mut next = state.clone();
        next.snapshots.clear();
        next.current = None;
        home.publish(&Change { next, ..Change::default() }).await.unwrap();
    });
    assert!(content(&world) == before);
}

#[test]
fn a_folder_that_vmware_has_open_is_refused() {
    for name in ["web.vmdk.lck", ".lck-5f00000000", "web.vmx.lck/M1.lck"] {
        let world = vmware_folder(42);
        world.write_file(&format!("web/{name}"), b"x");
        world.run(async |env| {
            let error = import(&env).await.err().unwrap();
            assert_eq!(error.kind, ErrorKind::Locked);
            assert!(error.to_string().contains("VMware has this VM open"), "{error}");
            assert!(env.open_root(OURS).unwrap().list().await.unwrap().is_empty());
        });
    }
}

#[test]
fn a_broken_chain_is_not_imported_and_leaves_nothing() {
    let world = vmware_folder(43);
    let text = String::from_utf8(world.read_file("web/web.vmdk", View::Durable).unwrap()).unwrap();
    let damaged = text.lines().map(|line| if line.starts_with("CID=") { "CID=12345678" } else { line });
    world.write_file("web/web.vmdk", (damaged.collect::<Vec<_>>().join("\n") + "\n").as_bytes());
    world.run(async |env| {
        let error = import(&env).await.err().unwrap();
        assert!(error.to_string().contains("the CID of"), "{error}");
        assert!(env.open_root(OURS).unwrap().list().await.unwrap().is_empty());
        let mut source = home(&env).await;
        source.ignore_content_ids = true;
        let dir = env.open_root(OURS).unwrap();
        Home::import(&source, dir, folders(&env), GROWTH, "mine").await.unwrap();
    });
}

#[test]
fn a_power_cut_anywhere_in_an_import_leaves_a_whole_vm_or_none_and_the_folder_as_it_was() {
    let mut whole = BTreeSet::new();
    for nth in 1.. {
        let world = vmware_folder(nth);
        let before = content(&world);
        world.cut_at(Cut::Event(nth));
        let finished = world.run(async |env| drop(import(&env).await.unwrap()));
        world.cancel_cut();
        world.power_cut();
        assert!(content(&world) == before, "cut at event {nth}");
        let exists = world.list(OURS, View::Current).is_some_and(|names| names.contains(&"mine.vmx".into()));
        if exists {
            world.run(async move |env| {
                let home = ours(&env).await;
                let state = home.load().await.unwrap();
                let id = state.current.unwrap();
                assert_eq!(home.disks_at(id).await.unwrap().unwrap().len(), 2, "cut at event {nth}");
                for disk in &state.disks {
                    assert_eq!(home.chain(&disk.top).await.unwrap().len(), 3);
                    home.open(&disk.top, true).await.unwrap();
                    assert!(!links::read(&home.folders, &disk.top).await.unwrap().is_prepared());
                }
            });
        }
        whole.insert(exists);
        if finished.is_some() {
            assert!(exists);
            break;
        }
    }
    assert_eq!(whole.len(), 2, "both outcomes occur");
}
