//! A limit holds a job back, and nothing else: a cancel, a close and another limit end the wait at once.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env};
use engine::{CommitWhat, Job, JobState, Options, Vm};
use sim::SimWorld;

use super::support::{self, Growth};

const DISK_BYTES: u64 = 4 << 20;
const GROWTH: Growth = support::growth(1 << 20);
/// Limit at which one piece of 64 KiB takes 32 s.
const LIMIT_BYTES_S: u64 = 2 << 10;
/// Much less than a piece takes, and much more than all I/Os of a device together.
const AT_ONCE_NS: u64 = 5_000_000_000;

async fn open(env: &Env) -> Rc<Vm> {
    support::open(env, "web", GROWTH, Options::default()).await
}

/// Makes a VM with two snapshots, each with a delta of 2 MiB on top of it.
async fn create(env: &Env) -> Rc<Vm> {
    support::create(env, "web", GROWTH, &[DISK_BYTES]).await;
    let vm = open(env).await;
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        vm.take(name, "").await.unwrap();
        let data = Buf::copy_of(&vec![n as u8 + 1; 1 << 20]).freeze();
        let disk = vm.disk(0).unwrap();
        for at in [n as u64, n as u64 + 1] {
            disk.clone().write(at << 20, data.clone()).await.unwrap();
        }
    }
    vm
}

/// Begins a commit, and holds it back with a limit.
async fn held_back(vm: &Rc<Vm>, name: &str) -> Rc<Job> {
    let job = vm.commit(&CommitWhat::One(name.into())).await.unwrap();
    job.set_limit(LIMIT_BYTES_S).unwrap();
    vm.env.sleep_us(1_000_000).await;
    assert_eq!(job.state(), JobState::Running);
    job
}

async fn check_content(vm: &Rc<Vm>) {
    let (shown, result) = vm.disk(0).unwrap().read(0, Buf::alloc(DISK_BYTES as usize)).await;
    result.unwrap();
    let mib = |n: usize| &shown[n << 20..(n + 1) << 20];
    for (n, byte) in [1, 2, 2, 0].into_iter().enumerate() {
        assert!(mib(n).iter().all(|shown| *shown == byte), "MiB {n} shows {byte}");
    }
}

fn in_world(test: impl AsyncFnOnce(Env, Rc<Vm>) + 'static) {
    let world = SimWorld::new(5, sim::Options::default());
    let done = world.run(async move |env| {
        let vm = create(&env).await;
        test(env, vm).await;
    });
    assert!(done.is_some());
}

#[test]
fn a_cancel_does_not_wait_for_the_limit() {
    in_world(async |env, vm| {
        let job = held_back(&vm, "a").await;
        let began_ns = env.now_ns();
        job.cancel().unwrap();
        assert_eq!(job.wait().await, JobState::Cancelled);
        assert!(env.now_ns() - began_ns < AT_ONCE_NS, "{} ns", env.now_ns() - began_ns);
        check_content(&vm).await;
    });
}

#[test]
fn a_close_does_not_wait_for_the_limit_and_the_commit_continues_afterwards() {
    in_world(async |env, vm| {
        held_back(&vm, "b").await;
        let began_ns = env.now_ns();
        vm.close().await.unwrap();
        assert!(env.now_ns() - began_ns < AT_ONCE_NS, "{} ns", env.now_ns() - began_ns);
        drop(vm);
        let vm = open(&env).await;
        assert_eq!(vm.jobs()[0].wait().await, JobState::Done);
        check_content(&vm).await;
    });
}

#[test]
fn a_new_limit_applies_at_once() {
    in_world(async |env, vm| {
        let job = held_back(&vm, "a").await;
        let began_ns = env.now_ns();
        job.set_limit(0).unwrap();
        assert_eq!(job.wait().await, JobState::Done);
        assert!(env.now_ns() - began_ns < AT_ONCE_NS, "{} ns", env.now_ns() - began_ns);
        check_content(&vm).await;
    });
}

#[test]
fn a_commit_that_waits_for_another_can_be_cancelled() {
    in_world(async |env, vm| {
        let first = held_back(&vm, "a").await;
        let second = vm.commit(&CommitWhat::One("b".into())).await.unwrap();
        let began_ns = env.now_ns();
        second.cancel().unwrap();
        assert_eq!(second.wait().await, JobState::Cancelled);
        assert!(env.now_ns() - began_ns < AT_ONCE_NS, "{} ns", env.now_ns() - began_ns);
        assert_eq!(first.state(), JobState::Running);
        first.set_limit(0).unwrap();
        assert_eq!(first.wait().await, JobState::Done);
        check_content(&vm).await;
    });
}
