use std::cell::Cell;

use blk::manifest::{DiskMode, NewDisk};
use blk::reactor::OpenMode;
use blk::volume::Volume;
use blk::{Buf, Slice};
use sim::{Action, Fault, Host, OpKind, Options, Pause, SimWorld, View};

use super::*;
use crate::native::layout::BLOCK;
use crate::native::{NativeVm, NewNativeVm, NewStore, Store, StoreOptions};
use crate::options::Options as EngineOptions;

pub(super) const LUN: &str = "lun";
const SMALL: NewStore = NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT };
/// A block of the first group, where these tests write like a store.
pub(super) const DATA_AT: u64 = 2000 * BLOCK;
pub(super) const SECOND_US: u64 = 1_000_000;

pub(super) async fn open(host: &Host) -> File {
    host.env.open_root("/").unwrap().open(LUN, OpenMode::Write).await.unwrap()
}

pub(super) fn claimant(host: &str, take_over: TakeOver) -> Claimant {
    thread_local!(static OPENINGS: Cell<u128> = const { Cell::new(1) });
    let id = OPENINGS.with(|openings| openings.replace(openings.get() + 1));
    let owner = Owner { id, boot_id: id, host: host.to_string(), pid: 4711, ..Owner::default() };
    Claimant { owner, terms: LeaseTimes::default(), take_over, reserves: None, has_ended: Rc::new(|_| false) }
}

pub(super) async fn acquire(host: &Host, claimant: Claimant) -> Result<Rc<Lease>> {
    Lease::acquire(&host.env, open(host).await, claimant).await
}

/// Runs `main` on two machines with a new store between them.
fn on_two_hosts<F>(main: impl FnOnce(Env, Host, Host) -> F) -> SimWorld
where
    F: Future<Output = ()> + 'static,
{
    let world = SimWorld::new(3, Options::default());
    on_hosts_of(&world, main);
    world
}

pub(super) fn on_hosts_of<F>(world: &SimWorld, main: impl FnOnce(Env, Host, Host) -> F)
where
    F: Future<Output = ()> + 'static,
{
    world.write_file(LUN, &vec![0; (2100 * BLOCK) as usize]);
    let made = world.run(|env| async move {
        let file = env.open_root("/").unwrap().open(LUN, OpenMode::Write).await.unwrap();
        Store::format(&env, &file, SMALL).await.unwrap();
    });
    made.expect("no cut");
    let done = world.run_hosts(2, |env, hosts| {
        let [a, b] = <[Host; 2]>::try_from(hosts).ok().expect("two machines");
        main(env, a, b)
    });
    done.expect("no cut");
}

pub(super) fn block(byte: u8) -> Slice {
    let mut block = Buf::alloc(BLOCK as usize);
    block.fill(byte);
    block.freeze()
}

/// Opens a file of the store with the lease's fence.
pub(super) async fn guarded(host: &Host, lease: &Lease) -> File {
    let file = open(host).await;
    file.set_fence(lease.fence());
    file
}

#[test]
fn a_running_owner_is_named_and_a_released_lease_is_free_at_once() {
    on_two_hosts(|env, a, b| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        for take_over in [TakeOver::FromNobody, TakeOver::FromOwnHost, TakeOver::FromAnyOwner] {
            let e = acquire(&b, claimant("a", take_over)).await.err().expect("its owner lives");
            assert_eq!(e.kind, ErrorKind::Locked);
            assert!(e.cause.contains("host a (pid 4711, since"), "{e}");
        }
        assert!(lease.lost().is_none());
        lease.release().await.unwrap();
        let before_ns = env.now_ns();
        let next = acquire(&b, claimant("b", TakeOver::FromNobody)).await.unwrap();
        assert!(env.now_ns() - before_ns < 2 * SECOND_US * 1000);
        assert_eq!(next.epoch(), lease.epoch() + 1);
    });
}

#[test]
fn only_an_owner_that_has_ended_on_this_host_is_replaced_at_once() {
    on_two_hosts(|env, a, b| async move {
        let dead = claimant("a", TakeOver::FromNobody);
        let id = dead.owner.id;
        let lease = acquire(&a, dead).await.unwrap();
        a.kill();
        let e = acquire(&b, claimant("a", TakeOver::FromNobody)).await.err().expect("a name is no proof");
        assert_eq!(e.kind, ErrorKind::Refused);
        assert!(e.cause.contains("take-over") && e.cause.contains("host a"), "{e}");
        let before_ns = env.now_ns();
        let knowing = Claimant {
            has_ended: Rc::new(move |owner| owner.id == id),
            ..claimant("b", TakeOver::FromNobody)
        };
        acquire(&b, knowing).await.unwrap();
        assert!(env.now_ns() - before_ns < 2 * SECOND_US * 1000);
        drop(lease);
    });
}

#[test]
fn an_unconfirmed_claim_is_waited_for_even_if_its_process_has_ended() {
    on_two_hosts(|env, a, b| async move {
        // The submissions are the opening, two reads of superblocks and one of the lease. The third one after these is
        // the flush of the claim.
        let claiming = a.env.spawn({
            let a = a.clone();
            async move { acquire(&a, claimant("a", TakeOver::FromNobody)).await.err() }
        });
        env.sleep_us(SECOND_US / 2).await;
        a.kill();
        drop(claiming);
        let knowing = |take_over| Claimant { has_ended: Rc::new(|_| true), ..claimant("b", take_over) };
        let e =
            acquire(&b, knowing(TakeOver::FromNobody)).await.err().expect("it may have hit another's page");
        assert_eq!(e.kind, ErrorKind::Refused);
        let before_ns = env.now_ns();
        acquire(&b, knowing(TakeOver::FromAnyOwner)).await.unwrap();
        assert!(env.now_ns() - before_ns >= 41 * SECOND_US * 1000);
    });
}

#[test]
fn a_paused_owner_writes_nothing_after_a_take_over() {
    let world = on_two_hosts(|env, a, b| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        let file = guarded(&a, &lease).await;
        file.write(DATA_AT, block(1)).await.unwrap();
        a.pause(Pause::AtSubmission(1));
        let late = a.env.spawn({
            let file = file.clone();
            async move { file.write(DATA_AT, block(2)).await }
        });
        let before_ns = env.now_ns();
        let taken = acquire(&b, claimant("b", TakeOver::FromAnyOwner)).await.unwrap();
        assert!(env.now_ns() - before_ns >= 41 * SECOND_US * 1000);
        let theirs = guarded(&b, &taken).await;
        theirs.write(DATA_AT, block(3)).await.unwrap();
        a.resume();
        let e = late.join().await.unwrap_err();
        assert_eq!(e.kind, ErrorKind::LeaseLost);
        assert!(e.cause.contains("host b") && lease.lost().is_some(), "{e}");
        let (_, read) = file.read(DATA_AT, Buf::alloc(BLOCK as usize)).await;
        assert_eq!(read.unwrap_err().kind, ErrorKind::LeaseLost, "what it would read is another's");
        env.sleep_us(60 * SECOND_US).await;
        assert!(taken.lost().is_none());
    });
    assert_eq!(world.read_at(LUN, DATA_AT, 1, View::Current).unwrap(), [3]);
}

#[test]
fn a_paused_owner_continues_if_its_lease_was_not_taken_over() {
    let world = on_two_hosts(|env, a, _| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        let file = guarded(&a, &lease).await;
        a.pause(Pause::AtSubmission(1));
        let late = a.env.spawn(async move { file.write(DATA_AT, block(2)).await });
        env.sleep_us(3600 * SECOND_US).await;
        let epoch = lease.epoch();
        a.resume();
        late.join().await.unwrap();
        assert_eq!(lease.epoch(), epoch + 1, "claimed anew");
    });
    assert_eq!(world.read_at(LUN, DATA_AT, 1, View::Current).unwrap(), [2]);
}

#[test]
fn an_owner_whose_new_claim_is_late_stops_because_it_may_have_overwritten_another_page() {
    let world = SimWorld::new(3, Options::default());
    let device = world.clone();
    on_hosts_of(&world, |env, a, _| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        a.pause(Pause::Now);
        env.sleep_us(20 * SECOND_US).await;
        device.add_fault(Fault::nth(1, Action::Delay { ns: 20 * SECOND_US * 1000 }).of(OpKind::Write));
        a.resume();
        env.sleep_us(60 * SECOND_US).await;
        let e = lease.lost().expect("lost permanently");
        assert!(e.cause.contains("claimed anew within 500 ms"), "{e}");
    });
}

#[test]
fn one_of_two_concurrent_claims_succeeds() {
    on_two_hosts(|_, a, b| async move {
        let [first, second] = [(&a, "a"), (&b, "b")].map(|(host, name)| {
            let host = host.clone();
            host.env.clone().spawn(async move { acquire(&host, claimant(name, TakeOver::FromNobody)).await })
        });
        let owners = [first.join().await, second.join().await];
        assert_eq!(owners.iter().filter(|owner| owner.is_ok()).count(), 1);
        let beaten = owners.iter().find_map(|owner| owner.as_ref().err()).unwrap();
        assert_eq!(beaten.kind, ErrorKind::Locked);
    });
}

#[test]
fn an_opening_on_the_host_of_the_same_name_waits_and_takes_over() {
    on_two_hosts(|_, a, b| async move {
        acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        a.kill();
        let e = acquire(&b, claimant("b", TakeOver::FromOwnHost)).await.err().unwrap();
        assert_eq!(e.kind, ErrorKind::Refused);
        acquire(&b, claimant("a", TakeOver::FromOwnHost)).await.unwrap();
    });
}

#[test]
fn an_unreadable_page_is_taken_over_only_on_request() {
    let world = on_two_hosts(|_, _, _| async {});
    world.write_at(LUN, crate::native::layout::LEASE_BLOCK * BLOCK + 40, &[9]);
    world.run_hosts(1, |_, hosts| async move {
        let e = acquire(&hosts[0], claimant("a", TakeOver::FromOwnHost)).await.err().unwrap();
        assert!(e.cause.contains("magic is") && e.cause.contains("take-over"), "{e}");
        acquire(&hosts[0], claimant("a", TakeOver::FromAnyOwner)).await.unwrap();
    });
}

/// Opens the store behind the lease and its only VM, which it creates if there is none.
async fn serve(host: &Host, lease: &Lease) -> (Rc<Store>, Rc<NativeVm>) {
    let file = guarded(host, lease).await;
    let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
    let store = Store::open(host.env.clone(), file, options, Default::default(), false).await.unwrap();
    if store.vms().await.unwrap().is_empty() {
        let disks =
            [NewDisk { size_bytes: 64 << 12, mode: DiskMode::Persistent, folder: None, source: None }];
        store.create_vm(NewNativeVm { name: "web", disks: &disks, slots: &[] }).await.unwrap();
    }
    let (id, _) = store.vms().await.unwrap().remove(0);
    let vm = NativeVm::open(&store, id, EngineOptions::default()).await.unwrap();
    (store, vm)
}

fn generation(vm: &NativeVm) -> u64 {
    vm.state().generation.present
}

#[test]
fn clients_of_a_host_that_was_taken_over_unclean_are_refused_by_the_generation() {
    on_two_hosts(|_, a, b| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        let (_store, vm) = serve(&a, &lease).await;
        let before = generation(&vm);
        vm.disk(0).unwrap().write(0, block(1)).await.unwrap();
        a.kill();
        let taken = acquire(&b, claimant("b", TakeOver::FromAnyOwner)).await.unwrap();
        let (_, there) = serve(&b, &taken).await;
        assert!(generation(&there) > before, "a client of the dead host may reconnect with its caches");
    });
}

#[test]
fn a_store_that_was_closed_goes_to_another_host_with_its_generations() {
    on_two_hosts(|_, a, b| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        let (store, vm) = serve(&a, &lease).await;
        let before = generation(&vm);
        vm.disk(0).unwrap().write(0, block(1)).await.unwrap();
        vm.close().await.unwrap();
        store.close().await.unwrap();
        lease.release().await.unwrap();
        let next = acquire(&b, claimant("b", TakeOver::FromNobody)).await.unwrap();
        let (_, there) = serve(&b, &next).await;
        assert_eq!(generation(&there), before, "every answer is durable");
    });
}

#[test]
fn a_store_that_was_leased_is_not_written_by_a_program_without_leases() {
    let world = on_two_hosts(|_, a, _| async move {
        let lease = acquire(&a, claimant("a", TakeOver::FromNobody)).await.unwrap();
        let (store, vm) = serve(&a, &lease).await;
        vm.close().await.unwrap();
        store.close().await.unwrap();
        lease.release().await.unwrap();
    });
    world.run(|env| async move {
        let file = env.open_root("/").unwrap().open(LUN, OpenMode::Read).await.unwrap();
        let found = Superblock::read(&file).await.unwrap().newest;
        assert_eq!(found.features_ro_compat, crate::native::superblock::LEASED);
    });
}
