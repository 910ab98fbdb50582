//! Which descriptors are cached, and which are read each time.

use super::super::paths::join;
use super::*;

/// Returns the number of files opened so far.
fn opened(world: &SimWorld) -> u64 {
    world.count(OpKind::Open).submitted
}

#[test]
fn a_second_read_opens_only_the_two_texts_and_detects_changes() {
    let world = new_world(40);
    let counted = world.clone();
    world.run(async move |env| {
        let home = home(&env).await;
        let mut state = home.load().await.unwrap();
        for uid in 1..=5 {
            state = take_all(&home, &state, uid).await.unwrap();
        }
        let first = home.links().await.unwrap();
        let before = opened(&counted);
        assert_eq!(home.links().await.unwrap(), first);
        assert_eq!(opened(&counted) - before, 2);
        home.chain_names(&state.disks[0].top).await.unwrap();
        assert_eq!(opened(&counted) - before, 2);
        // Both ends of a change: the link that is written, and its child.
        home.touch("web.vmdk").await.unwrap();
        let link = async |name: &str| links::read(&home.folders, name).await.unwrap();
        let written = probe::read_descriptor(home.dir(), "web.vmdk").await.unwrap();
        assert_eq!(*link("web.vmdk").await, written);
        assert_eq!(link("web-000001.vmdk").await.parent_cid(), Some(written.cid()));
        // The name of a removed link is free for another.
        let child = home.create_child("web_1.vmdk").await.unwrap().name().to_owned();
        link(&child).await;
        home.discard_child(&child).await.unwrap();
        assert_eq!(links::read(&home.folders, &child).await.unwrap_err().kind, ErrorKind::NotFound);
    });
}

#[test]
fn links_of_others_in_a_shared_folder_are_read_each_time() {
    let world = new_world(41);
    world.run(async |env| {
        let fast = env.open_root("/fast").unwrap();
        let home = home_in(&env, &["/fast"]).await;
        home.load().await.unwrap();
        let child = home.create_child("web.vmdk").await.unwrap().name().to_owned();
        let text = String::from_utf8(links::read(&home.folders, &child).await.unwrap().to_bytes()).unwrap();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# unstun")).collect();
        lines.push("# unstun: of VM 000000000000000000000000000000ff");
        let theirs = (lines.join("\n") + "\n").replace("\"web.vmdk\"", "\"/elsewhere/base.vmdk\"");
        fast.replace_file("theirs.vmdk", theirs.as_bytes()).await.unwrap();
        let layers = ["web.vmdk".to_owned()];
        assert_eq!(home.dependants(&layers).await.unwrap(), []);
        // The same file, of the other VM, now on a layer of this one.
        let base = join(&home.folders.home().path, "web.vmdk");
        let theirs = theirs.replace("/elsewhere/base.vmdk", &base);
        fast.replace_file("theirs.vmdk", theirs.as_bytes()).await.unwrap();
        assert_eq!(home.dependants(&layers).await.unwrap().len(), 1);
    });
}

#[test]
fn after_a_failed_change_everything_is_read_again() {
    let world = new_world(42);
    let counted = world.clone();
    world.run(async move |env| {
        let home = home(&env).await;
        let state = home.load().await.unwrap();
        take_all(&home, &state, 1).await.unwrap();
        home.links().await.unwrap();
        counted.add_fault(Fault::nth(1, Action::Fail(blk::Errno::EIO)).of(OpKind::Rename));
        assert!(home.touch("web.vmdk").await.is_err());
        counted.clear_faults();
        assert!(home.folders.cache.get(&join(&home.folders.home().path, "web_1.vmdk")).is_none());
    });
}
