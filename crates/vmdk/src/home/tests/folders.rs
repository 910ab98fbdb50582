//! Layers in several folders: permitted folders, places of new children, and one change over all of them.

use super::super::paths::resolve;
use super::*;
use crate::descriptor::ContentId;

const FAST: &[&str] = &["/fast"];

/// Sets /fast as the folder for all further deltas.
async fn put_deltas_on_fast(home: &Home) -> VmState {
    let names = home.dir().read_file("web.vmx", 1 << 20).await.unwrap();
    let text = String::from_utf8(names).unwrap();
    let text = format!("{text}workingDir = \"/fast\"\nsnapshot.redoNotWithParent = \"TRUE\"\n");
    home.dir().replace_file("web.vmx", text.as_bytes()).await.unwrap();
    home.load().await.unwrap()
}

async fn text_of(home: &Home, layer: &str) -> String {
    String::from_utf8(links::read(&home.folders, layer).await.unwrap().to_bytes()).unwrap()
}

#[test]
fn paths_are_resolved_as_text() {
    let table = [
        ("web.vmdk", Some("/ds/web/web.vmdk")),
        ("./sub//x.vmdk", Some("/ds/web/sub/x.vmdk")),
        ("../db/x.vmdk", Some("/ds/db/x.vmdk")),
        ("..\\db\\x.vmdk", Some("/ds/db/x.vmdk")),
        ("/vmfs/volumes/5/../x.vmdk", Some("/vmfs/volumes/x.vmdk")),
        ("../../../etc/passwd", None),
        ("F:\\vm\\x.vmdk", None),
    ];
    for (written, expected) in table {
        assert_eq!(resolve("/ds/web", written).as_deref(), expected, "{written}");
    }
}

#[test]
fn the_list_of_folders_reads_back() {
    let roots = vec![(FolderKind::Own, "/fast disk".to_owned()), (FolderKind::Foreign, "/san".to_owned())];
    let text = format_roots(&roots).unwrap();
    assert_eq!(text, b"own /fast disk\nforeign /san\n");
    assert_eq!(parse_roots("roots", &text).unwrap(), roots);
    assert!(parse_roots("roots", b"# none\n\n").unwrap().is_empty());
    for bad in ["own relative\n", "other /x\n", "own\n"] {
        let error = parse_roots("roots", bad.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("line 1 is"), "{error}");
    }
    assert!(parse_roots("roots", "own /x\n".repeat(257).as_bytes()).is_err());
    assert!(format_roots(&[(FolderKind::Own, "/a\nforeign /".into())]).is_err());
}

#[test]
fn deltas_go_to_the_snapshot_folder_and_come_back() {
    let world = new_world(11);
    world.run(async |env| {
        let home = home_in(&env, FAST).await;
        let state = put_deltas_on_fast(&home).await;
        let state = take_all(&home, &state, 1).await.unwrap();
        assert_eq!(state.disks[0].top, "/fast/web-000001.vmdk");
        assert!(text_of(&home, &state.disks[0].top).await.contains("parentFileNameHint=\"/web/web.vmdk\""));
        let second = take_all(&home, &state, 2).await.unwrap();
        let hint = text_of(&home, &second.disks[0].top).await;
        assert!(hint.contains("parentFileNameHint=\"web-000001.vmdk\""), "{hint}");
        assert_eq!(home.chain(&second.disks[0].top).await.unwrap().len(), 3);
        assert_eq!(home.load().await.unwrap(), second);
        // The second one's parent becomes the base, so its hint leads back to the home.
        let mut next = second.clone();
        next.snapshots.remove(0);
        next.snapshots[0].parent = None;
        next.snapshots[0].disks = vec![(0, "web.vmdk".into()), (1, "/fast/web_1-000001.vmdk".into())];
        home.touch("/fast/web-000001.vmdk").await.unwrap();
        home.touch("web.vmdk").await.unwrap();
        let change = Change {
            next: next.clone(),
            reparent: vec![("/fast/web-000002.vmdk".into(), "web.vmdk".into())],
            remove: vec!["/fast/web-000001.vmdk".into()],
            ..Change::default()
        };
        home.publish(&change).await.unwrap();
        assert_eq!(home.load().await.unwrap(), next);
        assert_eq!(home.chain("/fast/web-000002.vmdk").await.unwrap().len(), 2);
    });
    let left = world.list("fast", View::Durable).unwrap();
    assert!(!left.iter().any(|name| name.starts_with("web-000001")), "{left:?}");
}

#[test]
fn a_snapshot_folder_must_be_the_homes_own() {
    let world = new_world(12);
    world.run(async |env| {
        put_deltas_on_fast(&home(&env).await).await;
        let error = home(&env).await.create_child("web.vmdk").await.err().unwrap();
        assert!(error.to_string().contains("--allow-root"), "{error}");
        let foreign = Folders { foreign: vec![env.open_root("/fast").unwrap()], ..Folders::default() };
        let error =
            Home::new(folder(&env).await, foreign, GROWTH).create_child("web.vmdk").await.err().unwrap();
        assert!(error.to_string().contains("only reads from"), "{error}");
    });
}

#[test]
fn a_power_cut_anywhere_in_a_take_over_two_folders_leaves_the_old_vm_or_the_new_one() {
    cut_everywhere(
        FAST,
        async |home| put_deltas_on_fast(&home).await,
        async |home, state| take_all(&home, &state, 1).await,
    );
}

#[test]
fn a_power_cut_anywhere_in_a_change_over_two_folders_leaves_one_of_the_two_chains() {
    let prepare = async |home: Home| {
        let state = put_deltas_on_fast(&home).await;
        let state = take_all(&home, &state, 1).await.unwrap();
        take_all(&home, &state, 2).await.unwrap()
    };
    let step = async |home: Home, state: VmState| {
        let mut next = state.clone();
        next.snapshots.remove(0);
        next.snapshots[0].parent = None;
        next.snapshots[0].disks = vec![(0, "web.vmdk".into()), (1, "web_1.vmdk".into())];
        let links = [("/fast/web-000002.vmdk", "web.vmdk"), ("/fast/web_1-000002.vmdk", "web_1.vmdk")];
        let change = Change {
            next: next.clone(),
            reparent: links.map(|(child, parent)| (child.into(), parent.into())).to_vec(),
            remove: vec!["/fast/web-000001.vmdk".into(), "/fast/web_1-000001.vmdk".into()],
            ..Change::default()
        };
        home.publish(&change).await?;
        Ok(next)
    };
    cut_everywhere(FAST, prepare, step);
}

#[test]
fn a_foreign_layer_is_read_and_nothing_else() {
    let world = new_world(13);
    for name in ["web.vmdk", "web-flat.vmdk"] {
        let content = world.read_file(&format!("web/{name}"), View::Durable).unwrap();
        world.write_file(&format!("san/{name}"), &content);
    }
    world.run(async |env| {
        let folders = Folders { foreign: vec![env.open_root("/san").unwrap()], ..Folders::default() };
        let home = Home::new(folder(&env).await, folders, GROWTH);
        let vmx = String::from_utf8(home.dir().read_file("web.vmx", 1 << 20).await.unwrap()).unwrap();
        let vmx = vmx.replace("\"web.vmdk\"", "\"/san/web.vmdk\"");
        home.dir().replace_file("web.vmx", vmx.as_bytes()).await.unwrap();
        let state = home.load().await.unwrap();
        assert_eq!(state.disks[0].top, "/san/web.vmdk");
        assert!(!home.open("/san/web.vmdk", true).await.unwrap().shape().writable);
        assert_eq!(home.touch("/san/web.vmdk").await.unwrap_err().kind, ErrorKind::Refused);
        let state = take_all(&home, &state, 1).await.unwrap();
        assert_eq!(state.disks[0].top, "web-000001.vmdk", "at home, and not beside its parent");
        let chain = home.chain(&state.disks[0].top).await.unwrap();
        assert_eq!(chain.iter().map(|info| info.foreign).collect::<Vec<_>>(), [true, false]);
        let mut next = state.clone();
        next.snapshots.clear();
        next.current = None;
        let change = Change { next, remove: vec!["/san/web.vmdk".into()], ..Change::default() };
        assert!(home.publish(&change).await.unwrap_err().to_string().contains("only reads from"));
        assert_eq!(home.grow("/san/web.vmdk", 4 << 20).await.unwrap_err().kind, ErrorKind::Refused);
        home.dir().unlink("web.vmdk").await.unwrap();
        // Without the folder, the VM is refused by name, with the remedy.
        let error = self::home(&env).await.chain("web-000001.vmdk").await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains("/san/web.vmdk") && message.contains("--allow-root"), "{message}");
    });
}

#[test]
fn a_moved_parent_is_found_beside_its_child_and_in_a_sibling_by_its_content() {
    let world = new_world(14);
    world.run(async |env| {
        let home = home_in(&env, FAST).await;
        let state = home.load().await.unwrap();
        take_all(&home, &state, 1).await.unwrap();
        let child = text_of(&home, "web-000001.vmdk").await;
        let base = text_of(&home, "web.vmdk").await;
        // In a sibling of the child's folder, by the last folder of the hint.
        let sibling = child.replace("\"web.vmdk\"", "\"/vmfs/volumes/5/fast/moved.vmdk\"");
        home.dir().replace_file("sibling.vmdk", sibling.as_bytes()).await.unwrap();
        let fast = env.open_root("/fast").unwrap();
        let flat = base.replace("\"web-flat.vmdk\"", "\"/web/web-flat.vmdk\"");
        fast.replace_file("moved.vmdk", flat.as_bytes()).await.unwrap();
        let names = |chain: Vec<LayerInfo>| chain.into_iter().map(|info| info.name).collect::<Vec<_>>();
        assert_eq!(names(home.chain("sibling.vmdk").await.unwrap())[0], "/fast/moved.vmdk");
        // Also beside the child, with other content: the file on which the child was made counts.
        let mut other = crate::descriptor::Descriptor::parse("other", base.as_bytes()).unwrap();
        other.set_content_id(ContentId::from_random(77));
        home.dir().replace_file("moved.vmdk", &other.to_bytes()).await.unwrap();
        assert_eq!(names(home.chain("sibling.vmdk").await.unwrap())[0], "/fast/moved.vmdk");
        fast.unlink("moved.vmdk").await.unwrap();
        let error = home.chain("sibling.vmdk").await.unwrap_err();
        assert!(error.to_string().contains("parentCID is"), "{error}");
        let mut lenient = self::home(&env).await;
        lenient.ignore_content_ids = true;
        assert_eq!(names(lenient.chain("sibling.vmdk").await.unwrap())[0], "moved.vmdk");
    });
}

#[test]
fn homes_that_share_a_folder_leave_each_others_files_alone() {
    let world = new_world(15);
    world.run(async |env| {
        let root = root(&env);
        let dir = root.open_dir("web2", true).await.unwrap();
        let own = || Folders { own: vec![env.open_root("/fast").unwrap()], ..Folders::default() };
        let vm = NewVm::new("web", &[DISK_BYTES]);
        let other = Home::create(dir, own(), GROWTH, vm).await.unwrap();
        put_deltas_on_fast(&other).await;
        let first = home_in(&env, FAST).await;
        let state = put_deltas_on_fast(&first).await;
        let child = other.create_child("web.vmdk").await.unwrap().name().to_owned();
        let state = take_all(&first, &state, 1).await.unwrap();
        assert_eq!(
            (child.as_str(), state.disks[0].top.as_str()),
            ("/fast/web-000001.vmdk", "/fast/web-000002.vmdk")
        );
        // The other VM's prepared links and temporary files are not debris of this one.
        let fast = env.open_root("/fast").unwrap();
        fast.create_new("x.vmdk.deadbeef.unstun-tmp").await.unwrap();
        first.load().await.unwrap();
        assert!(other.chain(&child).await.is_ok());
        assert!(fast.list().await.unwrap().contains(&"x.vmdk.deadbeef.unstun-tmp".to_owned()));
        let mut next = other.load().await.unwrap();
        next.disks[0].top = child.clone();
        other.publish(&Change { next, ..Change::default() }).await.unwrap();
        let names = |links: Vec<LayerLink>| links.into_iter().map(|link| link.name).collect::<Vec<_>>();
        assert!(!names(first.links().await.unwrap()).contains(&child));
        assert!(names(other.links().await.unwrap()).contains(&child));
        // A link of unknown origin on a layer of this home belongs to this home.
        let text = text_of(&first, "/fast/web-000002.vmdk").await;
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# unstun")).collect();
        fast.replace_file("nameless.vmdk", (lines.join("\n") + "\n").as_bytes()).await.unwrap();
        assert!(names(first.links().await.unwrap()).contains(&"/fast/nameless.vmdk".to_owned()));
        assert!(!names(other.links().await.unwrap()).contains(&"/fast/nameless.vmdk".to_owned()));
    });
}

#[test]
fn homes_that_choose_names_in_one_folder_at_once_choose_different_ones() {
    let world = new_world(17);
    world.run(async |env| {
        let mut homes = Vec::new();
        for name in ["a", "b", "c"] {
            let dir = root(&env).open_dir(name, true).await.unwrap();
            let own = Folders { own: vec![env.open_root("/fast").unwrap()], ..Folders::default() };
            let home = Home::create(dir, own, GROWTH, NewVm::new("web", &[DISK_BYTES])).await.unwrap();
            let vmx = String::from_utf8(home.dir().read_file("web.vmx", 1 << 20).await.unwrap()).unwrap();
            let vmx = format!("{vmx}workingDir = \"/fast\"\nsnapshot.redoNotWithParent = \"TRUE\"\n");
            home.dir().replace_file("web.vmx", vmx.as_bytes()).await.unwrap();
            home.load().await.unwrap();
            homes.push(home);
        }
        let children =
            futures_util::future::join_all(homes.iter().map(|home| home.create_child("web.vmdk"))).await;
        let names: BTreeSet<String> =
            children.into_iter().map(|child| child.unwrap().name().to_owned()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    });
}

#[test]
fn change_tracking_ends_with_the_first_write() {
    let world = new_world(16);
    world.run(async |env| {
        let home = home(&env).await;
        home.load().await.unwrap();
        let tracked = |text: String, file: &str| {
            text.replace("version=1\n", "version=3\n")
                .replace("# Extent", &format!("changeTrackPath=\"{file}\"\n# Extent"))
        };
        let base = tracked(text_of(&home, "web.vmdk").await, "web-ctk.vmdk");
        by_hand(&home, "web.vmdk", base.as_bytes()).await;
        by_hand(&home, "web-ctk.vmdk", b"tracked").await;
        home.touch("web.vmdk").await.unwrap();
        let text = text_of(&home, "web.vmdk").await;
        assert!(!text.contains("changeTrackPath") && text.contains("version=1\n"), "{text}");
        assert_eq!(home.dir().read_file("web-ctk.vmdk.unstun-set-aside", 99).await.unwrap(), b"tracked");
        let notices = home.take_notices();
        assert!(notices[0].contains("the next backup must be a full one"), "{notices:?}");
        assert!(home.take_notices().is_empty());
        // Only a tracking file is moved aside.
        let second = tracked(text_of(&home, "web_1.vmdk").await, "web-flat.vmdk");
        by_hand(&home, "web_1.vmdk", second.as_bytes()).await;
        home.touch("web_1.vmdk").await.unwrap();
        assert!(home.open("web.vmdk", true).await.is_ok());
    });
}

#[test]
fn a_file_of_the_parents_name_elsewhere_is_not_taken_for_a_parent_that_was_written() {
    let world = new_world(19);
    world.run(async |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        let state = take_all(&home, &state, 1).await.unwrap();
        let top = &state.disks[0].top;
        let text = text_of(&home, top).await.replace("Hint=\"web.vmdk\"", "Hint=\"/elsewhere/web.vmdk\"");
        by_hand(&home, top, text.as_bytes()).await;
        assert_eq!(home.chain(top).await.unwrap().len(), 2, "moved, with the content the child was made on");
        let parent = links::read(&home.folders, "web.vmdk").await.unwrap().cid();
        let text = text.replace(&format!("parentCID={parent:08x}"), "parentCID=0badcafe");
        by_hand(&home, top, text.as_bytes()).await;
        let error = home.chain(top).await.unwrap_err().to_string();
        assert!(
            error.contains("the parent is \"/elsewhere/web.vmdk\"") && !error.contains("set parentCID"),
            "{error}"
        );
        // VMware's paths mean the file beside it, whatever their directory is.
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# unstun")).collect();
        by_hand(&home, top, (lines.join("\n") + "\n").as_bytes()).await;
        let error = home.chain(top).await.unwrap_err().to_string();
        assert!(error.contains("set parentCID"), "{error}");
    });
}
