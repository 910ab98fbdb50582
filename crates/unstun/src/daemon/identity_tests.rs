//! Copied, renamed and moved folders of VMs: one of them is the VM, and operations on the others do not affect it.

use std::path::Path;
use std::rc::Rc;

use api::{Finding, Severity, Store, VmCondition};
use blk::Env;
use sim::SimWorld;

use crate::daemon::defect::Defect;
use crate::daemon::simulated_tests::{
    DATASTORE, FAST, Outcome, boot, copy, create, read, remove, rename, served, take, text, world, write,
};
use crate::daemon::state::Daemon;

const STORES: [Store; 2] = [Store::Native, Store::Redo];

/// Creates a VM `a` with a snapshot, and with a disk elsewhere if it has files; then runs the user's changes to the
/// folders.
fn with_folders<F>(store: Store, by_hand: impl FnOnce(Env) -> F) -> SimWorld
where
    F: Future<Output = Outcome<()>> + 'static,
{
    let world = world(5);
    let prepared = served(&world, None, move |daemon| async move {
        let elsewhere = if store == Store::Redo { Some(FAST) } else { None };
        create(&daemon, "a", store, &[None, elsewhere]).await?;
        write(&daemon, "a", 1).await?;
        take(&daemon, "a").await?;
        write(&daemon, "a", 2).await
    });
    prepared.expect("nothing is cut").unwrap();
    world.run(by_hand).expect("nothing is cut").unwrap();
    world
}

fn in_datastore(name: &str) -> std::path::PathBuf {
    Path::new(DATASTORE).join(name)
}

fn start<T: 'static, F>(
    world: &SimWorld,
    defect: Option<Defect>,
    work: impl FnOnce(Rc<Daemon>) -> F + 'static,
) -> T
where
    F: Future<Output = Outcome<T>>,
{
    let done = world.run(|env| async move {
        let daemon = boot(env, defect).await?;
        let done = work(daemon.clone()).await?;
        daemon.shut_down().await.map_err(text("ending"))?;
        Ok::<T, String>(done)
    });
    done.expect("nothing is cut").unwrap()
}

/// Returns the names of the served VMs and of the broken ones.
async fn listed(daemon: &Rc<Daemon>) -> Outcome<(Vec<String>, Vec<String>)> {
    let vms = daemon.vm_list().await.map_err(text("vm list"))?;
    let of = |condition| vms.iter().filter(move |vm| vm.condition == condition).map(|vm| vm.name.to_string());
    Ok((of(VmCondition::Open).collect(), of(VmCondition::Broken).collect()))
}

/// Returns the findings of a check, without the note that it reads no files of VMs.
async fn found(daemon: &Rc<Daemon>) -> Outcome<Vec<Finding>> {
    let mut findings = daemon.store_check(None).await.map_err(text("check"))?.findings;
    findings.retain(|finding| finding.severity != Severity::Note);
    Ok(findings)
}

#[test]
fn a_copied_folder_is_not_served_and_its_removal_touches_nothing_of_the_vm() {
    for store in STORES {
        // The copy's name sorts before or after the original's.
        for name in ["0", "b"] {
            let world = with_folders(store, move |env| async move {
                copy(&env, &in_datastore("a"), &in_datastore(name)).await
            });
            for _ in 0..2 {
                start(&world, None, move |daemon| async move {
                    assert_eq!(
                        listed(&daemon).await?,
                        (vec!["a".to_owned()], vec![name.to_owned()]),
                        "{store:?}"
                    );
                    let vm = name.parse().unwrap();
                    let refused = daemon.vm_open(&vm, false).await.unwrap_err().to_string();
                    assert!(
                        refused.contains("is a copy of /ds/a") && refused.contains("vm clone"),
                        "{refused}"
                    );
                    let found = found(&daemon).await?;
                    assert_eq!(found.len(), 1, "{found:?}");
                    assert!(found[0].file.ends_with(name));
                    write(&daemon, "a", 3).await
                });
            }
            start(&world, None, move |daemon| async move {
                if store == Store::Redo {
                    let refused = remove(&daemon, name, true).await.unwrap_err();
                    assert!(refused.contains("by hand"), "{refused}");
                }
                remove(&daemon, name, store == Store::Native).await?;
                assert_eq!(listed(&daemon).await?, (vec!["a".to_owned()], vec![]));
                write(&daemon, "a", 4).await
            });
            start(&world, None, move |daemon| async move {
                assert_eq!(read(&daemon, "a").await?, 4);
                assert_eq!(listed(&daemon).await?, (vec!["a".to_owned()], vec![]));
                assert_eq!(found(&daemon).await?.len(), 0);
                Ok(())
            });
        }
    }
}

#[test]
fn a_renamed_home_is_taken_over_and_a_copy_of_it_is_refused() {
    for store in STORES {
        let world = with_folders(store, |env| async move { rename(&env, "a", "c").await });
        start(&world, None, move |daemon| async move {
            assert_eq!(listed(&daemon).await?, (vec!["c".to_owned()], vec![]), "{store:?}");
            write(&daemon, "c", 3).await
        });
        world
            .run(|env| async move { copy(&env, &in_datastore("c"), &in_datastore("a")).await })
            .unwrap()
            .unwrap();
        start(&world, None, move |daemon| async move {
            assert_eq!(listed(&daemon).await?, (vec!["c".to_owned()], vec!["a".to_owned()]), "{store:?}");
            assert_eq!(read(&daemon, "c").await?, 3);
            Ok(())
        });
    }
}

#[test]
fn of_two_with_the_same_claim_none_is_served_before_one_is_gone() {
    for store in STORES {
        let world = with_folders(store, |env| async move {
            copy(&env, &in_datastore("a"), &in_datastore("b")).await?;
            rename(&env, "a", "c").await
        });
        start(&world, None, move |daemon| async move {
            assert_eq!(listed(&daemon).await?, (vec![], vec!["b".to_owned(), "c".to_owned()]), "{store:?}");
            assert_eq!(found(&daemon).await?.len(), 2);
            remove(&daemon, "b", false).await?;
            daemon.vm_open(&"c".parse().unwrap(), false).await.map_err(text("vm open"))?;
            assert_eq!(read(&daemon, "c").await?, 2);
            Ok(())
        });
        start(&world, None, move |daemon| async move {
            assert_eq!(listed(&daemon).await?, (vec!["c".to_owned()], vec![]), "{store:?}");
            Ok(())
        });
    }
}

#[test]
fn a_copy_that_was_closed_is_removed_without_its_original() {
    for store in STORES {
        let world =
            with_folders(
                store,
                |env| async move { copy(&env, &in_datastore("a"), &in_datastore("b")).await },
            );
        start(&world, None, move |daemon| async move {
            let home = daemon.main.home("b");
            daemon.forget("b");
            daemon.closed.borrow_mut().insert("b".to_owned(), home);
            let removed = remove(&daemon, "b", true).await;
            assert_eq!(removed.is_err(), store == Store::Redo, "{removed:?}");
            assert_eq!(read(&daemon, "a").await?, 2);
            remove(&daemon, "a", true).await
        });
    }
}

#[test]
fn planted_defects_are_found() {
    let copied = || {
        with_folders(
            Store::Native,
            |env| async move { copy(&env, &in_datastore("a"), &in_datastore("b")).await },
        )
    };
    start(&copied(), Some(Defect::ServeCopies), |daemon| async move {
        write(&daemon, "b", 9).await?;
        assert_eq!(read(&daemon, "a").await?, 9, "two VMs on one disk");
        Ok(())
    });
    let world = copied();
    start(&world, Some(Defect::RemoveByMark), |daemon| async move { remove(&daemon, "b", true).await });
    start(&world, None, |daemon| async move {
        assert_eq!(listed(&daemon).await?.0, Vec::<String>::new(), "the removal of the copy took the VM");
        Ok(())
    });
}
