//! A native VM whose clients are on another core than its store.

use std::rc::Rc;

use blk::manifest::{DiskMode, NewDisk};
use blk::volume::Volume;
use blk::{Buf, Env, ErrorKind};
use sim::{Bridge, SimWorld};

use super::super::tests::open_store;
use super::super::vm::{NativeVm, NewNativeVm};
use super::tests::TwoCores;
use super::*;
use crate::machine::Machine;
use crate::options::Options;

/// Runs a request of the VM's core, and returns its result to this one.
async fn there<T: 'static>(env: &Env, request: impl Future<Output = T> + 'static) -> T {
    env.spawn(request).join().await
}

async fn made(envs: &[Env]) -> (Rc<NativeVm>, Rc<TwoCores>, Rc<RemoteVm>) {
    let store = open_store(&envs[0]).await.unwrap();
    let disk = NewDisk { size_bytes: 16 << 20, mode: DiskMode::Persistent, folder: None, source: None };
    let id =
        store.create_vm(NewNativeVm { name: "web", disks: &[disk.clone(), disk], slots: &[] }).await.unwrap();
    let vm = NativeVm::open(&store, id, Options::default()).await.unwrap();
    let cores = TwoCores::start(envs);
    let remote = cores.vm_side.open_vm(cores.store_side.serve_vm(vm.clone()));
    (vm, cores, remote)
}

async fn first_byte(volume: Rc<dyn Volume>) -> u8 {
    let (buf, result) = volume.read(0, Buf::alloc(4096)).await;
    result.unwrap();
    buf[0]
}

fn filled(byte: u8) -> blk::Slice {
    let mut buf = Buf::alloc(4096);
    buf.fill(byte);
    buf.freeze()
}

#[test]
fn clients_count_on_both_cores_and_share_their_disk() {
    let ran = SimWorld::new(11, sim::Options::default()).run_cores(2, |envs| async move {
        let (vm, cores, remote) = made(&envs).await;
        let attach = |client: &'static str| {
            let remote = remote.clone();
            there(&cores.vm_env, async move { remote.attach(0, client).await.unwrap() })
        };
        let ((first, a), (second, b)) = futures_util::future::join(attach("a"), attach("b")).await;
        assert!(Rc::ptr_eq(&first, &second), "one disk orders the changes of all its clients");
        let both = [(0, "a".to_owned()), (0, "b".to_owned())];
        let on = |machine: &dyn Machine| {
            let mut clients = machine.clients();
            clients.sort();
            clients
        };
        assert_eq!((on(&*vm), on(&*remote)), (both.to_vec(), both.to_vec()));
        let disk = Bridge::new(&cores.vm_env, first);
        disk.clone().write(0, filled(1)).await.unwrap();
        vm.clone().take("one", "").await.unwrap();
        disk.clone().write(0, filled(2)).await.unwrap();
        assert_eq!(vm.clone().revert(Some("one"), None, false).await.unwrap_err().kind, ErrorKind::Refused);
        drop((a, b, second, disk));
        let refreshed = remote.clone();
        there(&cores.vm_env, async move { refreshed.refresh().await }).await;
        assert_eq!(remote.state(), vm.state());
        assert!(on(&*vm).is_empty() && on(&*remote).is_empty());
        vm.clone().revert(Some("one"), None, false).await.unwrap();
        let (disk, _client) = attach("c").await;
        assert_eq!(first_byte(Bridge::new(&cores.vm_env, disk)).await, 1);
    });
    ran.expect("nothing cuts the power");
}

#[test]
fn a_sealed_state_is_read_on_another_core_and_protected() {
    let ran = SimWorld::new(12, sim::Options::default()).run_cores(2, |envs| async move {
        let (vm, cores, remote) = made(&envs).await;
        vm.disk(1).unwrap().write(0, filled(5)).await.unwrap();
        vm.clone().take("one", "").await.unwrap();
        vm.disk(1).unwrap().write(0, filled(6)).await.unwrap();
        let open = |snapshot: &'static str| {
            let remote = remote.clone();
            there(&cores.vm_env, async move { remote.open_view(snapshot, 1, "reader").await })
        };
        assert_eq!(open("two").await.err().map(|e| e.kind), Some(ErrorKind::NotFound));
        let (sealed, view) = open("one").await.unwrap();
        assert_eq!(first_byte(Bridge::new(&cores.vm_env, sealed.clone())).await, 5);
        let refused = sealed.clone().write(0, filled(7));
        assert_eq!(there(&cores.vm_env, refused).await.unwrap_err().kind, ErrorKind::Refused);
        assert_eq!(vm.clone().discard("one", false).await.err().map(|e| e.kind), Some(ErrorKind::Refused));
        drop((sealed, view));
        let refreshed = remote.clone();
        there(&cores.vm_env, async move { refreshed.refresh().await }).await;
        vm.clone().discard("one", false).await.unwrap();
    });
    ran.expect("nothing cuts the power");
}

#[test]
fn operations_are_refused_beside_the_store_and_a_closed_vm_serves_nothing() {
    let ran = SimWorld::new(13, sim::Options::default()).run_cores(2, |envs| async move {
        let (vm, cores, remote) = made(&envs).await;
        let here = remote.clone();
        let taken = there(&cores.vm_env, async move { here.take("one", "").await.map(drop) }).await;
        assert_eq!(taken.unwrap_err().kind, ErrorKind::Refused);
        assert_eq!(remote.disks().len(), 2);
        let attached = remote.clone();
        let (disk, _client) =
            there(&cores.vm_env, async move { attached.attach(0, "a").await.unwrap() }).await;
        let disk = Bridge::new(&cores.vm_env, disk);
        disk.clone().write(0, filled(1)).await.unwrap();
        vm.close().await.unwrap();
        assert_eq!(disk.write(0, filled(2)).await.unwrap_err().kind, ErrorKind::Cancelled);
    });
    ran.expect("nothing cuts the power");
}

#[test]
fn a_removed_disk_is_not_served_any_more() {
    let ran = SimWorld::new(14, sim::Options::default()).run_cores(2, |envs| async move {
        let (vm, cores, remote) = made(&envs).await;
        let attached = remote.clone();
        let client = there(&cores.vm_env, async move { attached.attach(1, "a").await.unwrap() }).await;
        drop(client);
        let refresh = async || {
            let refreshed = remote.clone();
            there(&cores.vm_env, async move { refreshed.refresh().await }).await;
        };
        refresh().await;
        assert_eq!(vm.store.remote_disks.borrow().len(), 1, "it may have another client soon");
        vm.clone().remove_disk(1, true).await.unwrap();
        refresh().await;
        refresh().await;
        assert!(vm.store.remote_disks.borrow().is_empty());
    });
    ran.expect("nothing cuts the power");
}
