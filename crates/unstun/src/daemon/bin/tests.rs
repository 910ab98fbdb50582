//! Tests in virtual time of what the bin keeps, for how long, and what it removes first.

use std::rc::Rc;

use api::{BinEmpty, BinRestore, Store, VmRemove};
use futures_util::future::{join, join_all};
use sim::SimWorld;

use blk::reactor::Space;

use super::policy::HOUR_US;
use super::*;
use crate::daemon::bin::policy::BinPolicy;
use crate::daemon::simulated_tests::{
    Outcome, bin, boot_with, create, evict, machine, read, remove, restore, text, world, write,
};

const STORES: [Store; 2] = [Store::Native, Store::Redo];

#[test]
fn what_is_kept_depends_on_what_is_free() {
    let policy = BinPolicy::default();
    let space = |free_bytes| Space { free_bytes, total_bytes: 1 << 40, freeing_bytes: 0 };
    assert!(policy.leaves(space(1 << 39)) && !policy.is_short(space(1 << 39)));
    assert!(!policy.leaves(space((1 << 40) / 10)));
    assert!(policy.is_short(space(1 << 30)));
    let none = BinPolicy { free_percent: 0, ..policy };
    assert!(none.leaves(space(1)) && !none.leaves(space(0)) && none.is_short(space(1)));
    assert_eq!(policy.kept_until_unix_us(5), 24 * HOUR_US + 5);
    assert_eq!(policy.kept_until_unix_us(i64::MAX), i64::MAX);
}

/// Creates a datastore with VMs `one`, `two` and `three`, whose first sectors contain 1, 2 and 3.
fn three(store: Store) -> SimWorld {
    let world = world(3);
    serve(&world, BinPolicy::default(), move |daemon| async move {
        for (name, byte) in [("one", 1), ("two", 2), ("three", 3)] {
            create(&daemon, name, store, &[None]).await?;
            write(&daemon, name, byte).await?;
        }
        Ok(())
    });
    world
}

/// Runs `work` in a daemon on the datastore.
fn serve<F>(world: &SimWorld, policy: BinPolicy, work: impl FnOnce(Rc<Daemon>) -> F + 'static)
where
    F: Future<Output = Outcome<()>>,
{
    let done = world.run(move |env| async move {
        let daemon = boot_with(env, None, policy).await?;
        work(daemon.clone()).await?;
        daemon.shut_down().await.map_err(text("ending"))
    });
    done.expect("nothing is cut").unwrap();
}

fn kept(daemon: &Daemon) -> Vec<String> {
    daemon.in_bins(None).expect("a list").iter().map(|(_, _, record)| record.vm.to_string()).collect()
}

async fn pass_hours(daemon: &Daemon, hours: u64) {
    daemon.env.sleep_us(hours * HOUR_US.unsigned_abs()).await;
}

#[test]
fn each_entry_goes_when_its_own_time_is_over() {
    for store in STORES {
        serve(&three(store), BinPolicy::default(), |daemon| async move {
            bin(&daemon, "two").await?;
            pass_hours(&daemon, 20).await;
            bin(&daemon, "one").await?;
            daemon.clean_bins().await;
            assert_eq!(kept(&daemon), ["two", "one"]);
            pass_hours(&daemon, 5).await;
            daemon.clean_bins().await;
            assert_eq!(kept(&daemon), ["one"]);
            restore(&daemon, "one").await?;
            assert_eq!(read(&daemon, "one").await?, 1);
            pass_hours(&daemon, 100).await;
            daemon.clean_bins().await;
            assert_eq!(read(&daemon, "one").await?, 1, "what was brought back stays");
            Ok(())
        });
    }
}

#[test]
fn a_clock_that_is_wrong_for_less_than_a_day_removes_nothing() {
    for store in STORES {
        let world = three(store);
        let clock = world.clone();
        serve(&world, BinPolicy::default(), |daemon| async move {
            bin(&daemon, "two").await?;
            clock.set_clock_ahead(1000 * HOUR_US);
            for _ in 0..3 {
                daemon.clean_bins().await;
                pass_hours(&daemon, 7).await;
            }
            assert_eq!(kept(&daemon), ["two"]);
            clock.set_clock_ahead(0);
            daemon.clean_bins().await;
            assert_eq!(kept(&daemon), ["two"]);
            pass_hours(&daemon, 4).await;
            daemon.clean_bins().await;
            assert_eq!(kept(&daemon), Vec::<String>::new());
            Ok(())
        });
    }
}

#[test]
fn a_clock_that_stays_as_it_was_set_counts_after_a_day() {
    let world = three(Store::Native);
    let clock = world.clone();
    serve(&world, BinPolicy { hours: 1000, free_percent: 0 }, |daemon| async move {
        bin(&daemon, "two").await?;
        clock.set_clock_ahead(1000 * HOUR_US);
        daemon.clean_bins().await;
        pass_hours(&daemon, 25).await;
        daemon.clean_bins().await;
        assert_eq!(kept(&daemon), Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn what_finds_no_space_has_the_oldest_go_first_one_by_one() {
    let always_short = BinPolicy { hours: 24, free_percent: 100 };
    for store in STORES {
        let world = three(store);
        serve(&world, BinPolicy::default(), |daemon| async move {
            for name in ["three", "one", "two"] {
                bin(&daemon, name).await?;
                pass_hours(&daemon, 1).await;
            }
            assert!(!daemon.make_room(&daemon.main).await, "enough is free");
            assert_eq!(kept(&daemon).len(), 3);
            Ok(())
        });
        serve(&world, always_short, |daemon| async move {
            assert!(daemon.make_room(&daemon.main).await);
            assert_eq!(kept(&daemon), ["one", "two"]);
            // Requests that wait together cause one removal for all of them.
            let made = join_all((0..8).map(|_| daemon.make_room(&daemon.main))).await;
            assert_eq!((made, kept(&daemon)), (vec![true; 8], vec!["two".to_owned()]));
            daemon.clean_bins().await;
            assert_eq!(kept(&daemon), Vec::<String>::new(), "the share that is to stay free");
            assert!(!daemon.make_room(&daemon.main).await);
            Ok(())
        });
    }
}

#[test]
fn a_vm_that_was_to_be_kept_does_not_go_for_good() {
    for policy in [BinPolicy { hours: 0, free_percent: 0 }, BinPolicy { hours: 24, free_percent: 100 }] {
        serve(&three(Store::Redo), policy, |daemon| async move {
            let one = "one".parse().expect("a name");
            let keep = VmRemove { delete_disks: true, purge: false, keep: true };
            let refused = daemon.vm_remove(&one, keep).await.expect_err("it cannot be kept");
            assert_eq!(refused.kind, api::error::ErrorKind::Refused, "{refused}");
            assert_eq!(read(&daemon, "one").await?, 1);
            let preview = daemon.remove_preview(&one, keep).await.map_err(text("preview"))?;
            assert!(preview.kept_until.is_none() && preview.not_kept.is_some());
            let done =
                daemon.vm_remove(&one, VmRemove { keep: false, ..keep }).await.map_err(text("remove"))?;
            assert!(done.disks_deleted && done.bin.is_none());
            remove(&daemon, "two", true).await
        });
    }
}

/// One operation restores the entry, and no other one removes it meanwhile.
#[test]
fn an_entry_has_one_way_out_at_a_time() {
    for store in STORES {
        serve(&three(store), BinPolicy::default(), move |daemon| async move {
            bin(&daemon, "one").await?;
            let name = |name: &str| Some(name.parse().expect("a name"));
            let request = |to| BinRestore {
                entry: "one".to_owned(),
                name: name(to),
                datastore: None,
                disconnect: false,
            };
            let restores = join_all(["x", "y"].map(|to| daemon.bin_restore(request(to))));
            let all = BinEmpty::default();
            let (restored, emptied) = join(restores, daemon.bin_empty(&all)).await;
            assert_eq!(restored.iter().filter(|done| done.is_ok()).count(), 1);
            assert!(emptied.is_ok_and(|done| done.entries.is_empty()));
            assert_eq!(read(&daemon, "x").await?, 1);
            bin(&daemon, "x").await?;
            evict(&daemon).await?;
            assert_eq!(kept(&daemon), Vec::<String>::new());
            create(&daemon, "x", store, &[None]).await
        });
    }
}

#[test]
fn a_state_goes_when_its_time_is_over() {
    for store in STORES {
        serve(&three(store), BinPolicy::default(), |daemon| async move {
            let vm = machine(&daemon, "one").map_err(|e| e.to_string())?;
            vm.clone().take("a", "").await.map_err(|e| e.to_string())?;
            vm.clone().revert(None, None, true).await.map_err(|e| e.to_string())?;
            pass_hours(&daemon, 20).await;
            vm.clone().revert(None, None, true).await.map_err(|e| e.to_string())?;
            daemon.clean_bins().await;
            let states = || vm.state().bin.len();
            assert_eq!((states(), daemon.bin_list(None).await.map_err(text("a list"))?.len()), (2, 2));
            pass_hours(&daemon, 5).await;
            daemon.clean_bins().await;
            assert_eq!(states(), 1);
            pass_hours(&daemon, 20).await;
            daemon.clean_bins().await;
            assert_eq!(states(), 0);
            Ok(())
        });
    }
}
