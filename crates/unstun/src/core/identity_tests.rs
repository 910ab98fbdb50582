//! Copied, renamed and moved folders of VMs: one of them is the VM, and nothing that is done with another one touches it.

use std::path::Path;
use std::rc::Rc;

use blk::Env;
use sim::SimWorld;

use super::defect::Defect;
use super::node::Node;
use super::simulated_tests::{
    DATASTORE, FAST, Outcome, boot, copy, create, read, remove, rename, served, take, text, world, write,
};
use crate::api::{Finding, Severity, Store, VmCondition};

const STORES: [Store; 2] = [Store::Native, Store::Redo];

/// A VM `a` with a snapshot and a disk elsewhere, if it has files; then what its user does to the folders.
fn with_folders<F>(store: Store, by_hand: impl FnOnce(Env) -> F) -> SimWorld
where
    F: Future<Output = Outcome<()>> + 'static,
{
    let world = world(5);
    let prepared = served(&world, None, move |node| async move {
        let elsewhere = if store == Store::Redo { Some(FAST) } else { None };
        create(&node, "a", store, &[None, elsewhere]).await?;
        write(&node, "a", 1).await?;
        take(&node, "a").await?;
        write(&node, "a", 2).await
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
    work: impl FnOnce(Rc<Node>) -> F + 'static,
) -> T
where
    F: Future<Output = Outcome<T>>,
{
    let done = world.run(|env| async move {
        let node = boot(env, defect).await?;
        let done = work(node.clone()).await?;
        node.shut_down().await.map_err(text("ending"))?;
        Ok::<T, String>(done)
    });
    done.expect("nothing is cut").unwrap()
}

/// Names of the VMs that are served, and of those that are broken.
async fn listed(node: &Rc<Node>) -> Outcome<(Vec<String>, Vec<String>)> {
    let vms = node.vm_list().await.map_err(text("vm list"))?;
    let of = |condition| vms.iter().filter(move |vm| vm.condition == condition).map(|vm| vm.name.to_string());
    Ok((of(VmCondition::Open).collect(), of(VmCondition::Broken).collect()))
}

/// What a check finds; that it reads no files of VMs is a note.
async fn found(node: &Rc<Node>) -> Outcome<Vec<Finding>> {
    let mut findings = node.store_check(None).await.map_err(text("check"))?.findings;
    findings.retain(|finding| finding.severity != Severity::Note);
    Ok(findings)
}

#[test]
fn a_copied_folder_is_not_served_and_its_removal_touches_nothing_of_the_vm() {
    for store in STORES {
        // Before and behind it by name.
        for name in ["0", "b"] {
            let world = with_folders(store, move |env| async move {
                copy(&env, &in_datastore("a"), &in_datastore(name)).await
            });
            for _ in 0..2 {
                start(&world, None, move |node| async move {
                    assert_eq!(
                        listed(&node).await?,
                        (vec!["a".to_owned()], vec![name.to_owned()]),
                        "{store:?}"
                    );
                    let vm = name.parse().unwrap();
                    let refused = node.vm_open(&vm).await.unwrap_err().to_string();
                    assert!(
                        refused.contains("is a copy of /ds/a") && refused.contains("vm clone"),
                        "{refused}"
                    );
                    let found = found(&node).await?;
                    assert_eq!(found.len(), 1, "{found:?}");
                    assert!(found[0].file.ends_with(name));
                    write(&node, "a", 3).await
                });
            }
            start(&world, None, move |node| async move {
                if store == Store::Redo {
                    let refused = remove(&node, name, true).await.unwrap_err();
                    assert!(refused.contains("by hand"), "{refused}");
                }
                remove(&node, name, store == Store::Native).await?;
                assert_eq!(listed(&node).await?, (vec!["a".to_owned()], vec![]));
                write(&node, "a", 4).await
            });
            start(&world, None, move |node| async move {
                assert_eq!(read(&node, "a").await?, 4);
                assert_eq!(listed(&node).await?, (vec!["a".to_owned()], vec![]));
                assert_eq!(found(&node).await?.len(), 0);
                Ok(())
            });
        }
    }
}

#[test]
fn a_renamed_home_is_taken_over_and_a_copy_of_it_is_refused() {
    for store in STORES {
        let world = with_folders(store, |env| async move { rename(&env, "a", "c").await });
        start(&world, None, move |node| async move {
            assert_eq!(listed(&node).await?, (vec!["c".to_owned()], vec![]), "{store:?}");
            write(&node, "c", 3).await
        });
        world
            .run(|env| async move { copy(&env, &in_datastore("c"), &in_datastore("a")).await })
            .unwrap()
            .unwrap();
        start(&world, None, move |node| async move {
            assert_eq!(listed(&node).await?, (vec!["c".to_owned()], vec!["a".to_owned()]), "{store:?}");
            assert_eq!(read(&node, "c").await?, 3);
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
        start(&world, None, move |node| async move {
            assert_eq!(listed(&node).await?, (vec![], vec!["b".to_owned(), "c".to_owned()]), "{store:?}");
            assert_eq!(found(&node).await?.len(), 2);
            remove(&node, "b", false).await?;
            node.vm_open(&"c".parse().unwrap()).await.map_err(text("vm open"))?;
            assert_eq!(read(&node, "c").await?, 2);
            Ok(())
        });
        start(&world, None, move |node| async move {
            assert_eq!(listed(&node).await?, (vec!["c".to_owned()], vec![]), "{store:?}");
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
        start(&world, None, move |node| async move {
            let home = node.main.home("b");
            node.forget("b");
            node.closed.borrow_mut().insert("b".to_owned(), home);
            let removed = remove(&node, "b", true).await;
            assert_eq!(removed.is_err(), store == Store::Redo, "{removed:?}");
            assert_eq!(read(&node, "a").await?, 2);
            remove(&node, "a", true).await
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
    start(&copied(), Some(Defect::ServeCopies), |node| async move {
        write(&node, "b", 9).await?;
        assert_eq!(read(&node, "a").await?, 9, "two VMs on one disk");
        Ok(())
    });
    let world = copied();
    start(&world, Some(Defect::RemoveByMark), |node| async move { remove(&node, "b", true).await });
    start(&world, None, |node| async move {
        assert_eq!(listed(&node).await?.0, Vec::<String>::new(), "the removal of the copy took the VM");
        Ok(())
    });
}
