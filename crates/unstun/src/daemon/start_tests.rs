//! Start with many VMs, which are opened side by side: the outcome is that of opening them one after the other, and one
//! that cannot be opened affects no other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use api::Store;
use sim::SimWorld;

use crate::daemon::defect::Defect;
use crate::daemon::simulated_tests::{
    DATASTORE, Outcome, boot, copy, create, read, rename, served, text, world, write,
};
use crate::daemon::state::Daemon;

/// Native VMs: more than are opened side by side, so that some wait for others.
const NATIVE: u8 = 40;
const SEEDS: std::ops::Range<u64> = 0..6;

/// What a start has made of each home, and its notices.
#[derive(Debug, Default, PartialEq)]
struct Started {
    open: BTreeSet<String>,
    closed: BTreeSet<String>,
    broken: BTreeMap<String, String>,
    notices: Vec<String>,
}

fn name(number: u8) -> String {
    format!("n{number:02}")
}

/// Creates the VMs, and changes folders by hand.
fn prepared(seed: u64) -> SimWorld {
    let world = world(seed);
    let made = served(&world, None, |daemon| async move {
        for number in 0..NATIVE {
            create(&daemon, &name(number), Store::Native, &[None]).await?;
            write(&daemon, &name(number), number).await?;
        }
        for files in ["a-files", "z-files"] {
            create(&daemon, files, Store::Redo, &[None]).await?;
        }
        for closed in ["n05", "a-files"] {
            daemon.vm_close(&closed.parse().unwrap(), false).await.map_err(text("vm close"))?;
        }
        Ok(())
    });
    made.expect("nothing is cut").unwrap();
    let changed = world.run(|env| async move {
        let home = |name: &str| Path::new(DATASTORE).join(name);
        for (from, to) in [("n01", "copy-after"), ("n39", "z-copy")] {
            copy(&env, &home(from), &home(to)).await?;
        }
        rename(&env, "n03", "renamed").await?;
        for unmarked in ["n06", "n07"] {
            let own = env.open_root(&home(unmarked).join(".unstun").to_string_lossy()).unwrap();
            own.unlink("native").await.unwrap();
        }
        Outcome::Ok(())
    });
    changed.expect("nothing is cut").unwrap();
    world.write_file("/ds/n02/.unstun/native", b"no id\n");
    world.write_file("/ds/n30/.unstun/limits", b"iops 0\n");
    world
}

fn listed(daemon: &Rc<Daemon>) -> Started {
    let names = |entry: Rc<crate::daemon::vm::vm_record::VmRecord>| entry.name.clone();
    let broken = daemon.broken.borrow();
    Started {
        open: daemon.entries().into_iter().map(names).collect(),
        closed: daemon.closed.borrow().keys().cloned().collect(),
        broken: broken.iter().map(|(name, broken)| (name.clone(), broken.cause.to_string())).collect(),
        notices: daemon.main.notices.borrow().clone(),
    }
}

fn start(world: &SimWorld, defect: Option<Defect>) -> Started {
    let started = world.run(|env| async move {
        let daemon = boot(env, defect).await?;
        for number in (0..NATIVE).filter(|number| daemon.entry(&name(*number)).is_ok()) {
            if read(&daemon, &name(number)).await? != number {
                return Err(format!("{} has another VM's disk", name(number)));
            }
        }
        let started = listed(&daemon);
        daemon.shut_down().await.map_err(text("ending"))?;
        Ok(started)
    });
    started.expect("nothing is cut").unwrap()
}

fn part(text: &BTreeMap<String, String>, name: &str) -> String {
    text.get(name).cloned().unwrap_or_default()
}

#[test]
fn the_outcome_of_a_start_does_not_depend_on_the_order_of_the_openings() {
    // IDs are random: a message with one differs from seed to seed.
    let without_ids = |started: Started| Started { notices: Vec::new(), ..started };
    let first = without_ids(start(&prepared(0), None));
    for seed in SEEDS {
        let world = prepared(seed);
        let started = start(&world, None);
        assert_eq!(started.notices.len(), 3, "seed {seed}: {:?}", started.notices);
        for (notice, name) in started.notices.iter().zip(["VM n02 (", "VM n06 (", "VM n07 ("]) {
            assert!(notice.contains(name) && notice.contains("its name is taken"), "seed {seed}: {notice}");
        }
        assert_eq!(without_ids(started), first, "seed {seed}");
        assert_eq!(without_ids(start(&world, None)), first, "seed {seed}, started again");
    }
    let gone = ["n02", "n03", "n05", "n06", "n07"].map(String::from);
    let mut open: BTreeSet<String> = (0..NATIVE).map(name).filter(|name| !gone.contains(name)).collect();
    open.insert("z-files".to_owned());
    assert_eq!(first.open, open);
    assert_eq!(first.closed, ["a-files", "n05"].map(String::from).into());
    let broken: Vec<_> = first.broken.keys().map(String::as_str).collect();
    assert_eq!(broken, ["copy-after", "n02", "n06", "n07", "renamed", "z-copy"]);
    assert!(part(&first.broken, "copy-after").contains("a copy of /ds/n01"), "{first:?}");
    assert!(part(&first.broken, "z-copy").contains("a copy of /ds/n39"), "{first:?}");
    // The mark that cannot be read may be that of the same VM.
    assert!(part(&first.broken, "renamed").contains("the other is /ds/n02"), "{first:?}");
    assert!(part(&first.broken, "n02").contains("expected the id of a VM"), "{first:?}");
}

#[test]
fn a_home_that_cannot_be_made_again_keeps_no_other_from_being_made_and_opened() {
    let world = world(3);
    let made = served(&world, None, |daemon| async move {
        for number in 0..3 {
            create(&daemon, &name(number), Store::Native, &[None]).await?;
            write(&daemon, &name(number), number).await?;
        }
        Ok(())
    });
    made.expect("nothing is cut").unwrap();
    let changed = world.run(|env| async move {
        for number in 0..3 {
            let away = format!("away{number}");
            rename(&env, &name(number), &away).await?;
            let own = env.open_root(&format!("{DATASTORE}/{away}/.unstun")).unwrap();
            own.unlink("native").await.unwrap();
        }
        Outcome::Ok(())
    });
    changed.expect("nothing is cut").unwrap();
    world.write_file("/ds/n01", b"no folder");
    let started = start(&world, None);
    assert_eq!(started.open, ["n00", "n02"].map(String::from).into(), "{started:?}");
    let [notice] = &started.notices[..] else { panic!("{started:?}") };
    assert!(notice.starts_with("VM n01 (") && notice.contains("none can be made"), "{notice}");
}

/// The first test finds a start that serves a copy.
#[test]
fn a_planted_copy_is_found() {
    let started = start(&prepared(1), Some(Defect::ServeCopies));
    assert!(started.open.contains("copy-after") && started.open.contains("z-copy"), "{started:?}");
}
