//! QEMU reads what unstun writes, byte for byte, and unstun reads what QEMU writes. On real files through io_uring;
//! needs qemu-img, which scripts/setup.sh installs.

use std::rc::Rc;

use blk::Dir;
use blk::layer::Layer;
use blk::manifest::{Change, Manifest, SnapshotState, VmState};
use sim::Rng;
use vmdk::home::{Folders, Home, NewVm};

use crate::support::layers::{self, WRITES_MAX};
use crate::support::{GROWTH, convert, qemu_img, run, scratch};

/// A chain of layers, and the content that the guest should see.
struct Disk {
    chain: Vec<Rc<dyn Layer>>,
    model: Vec<u8>,
    rng: Rng,
}

impl Disk {
    async fn write_randomly(&mut self) {
        let top = self.chain.last().unwrap();
        layers::write_randomly(&mut self.rng, &**top, 0, &mut self.model, WRITES_MAX).await;
    }

    async fn read(&self) -> Vec<u8> {
        let mut content = vec![0; self.model.len()];
        for layer in &self.chain {
            layers::show(&**layer, 0, &mut content).await.unwrap();
        }
        content
    }

    async fn seal(&self) {
        layers::seal(&**self.chain.last().unwrap()).await;
    }
}

/// Puts a child on the first disk, as a take does.
async fn take(home: &dyn Manifest, state: &VmState, disk: &mut Disk) -> VmState {
    let child = home.create_child(&state.disks[0].top).await.unwrap();
    let mut next = state.clone();
    next.last_uid += 1;
    next.snapshots.push(SnapshotState {
        id: u128::from(next.last_uid),
        uid: next.last_uid,
        parent: next.current,
        name: "s".into(),
        description: String::new(),
        created_unix_us: 0,
        disks: vec![(0, state.disks[0].top.clone())],
    });
    next.current = Some(u128::from(next.last_uid));
    next.disks[0].top = child.name().into();
    home.publish(&Change { next: next.clone(), ..Change::default() }).await.unwrap();
    disk.chain.push(child);
    next
}

async fn new_disk(folder: &Dir, bytes: u64, seed: u64) -> (Home, VmState, Disk) {
    let home =
        Home::create(folder.clone(), Folders::default(), GROWTH, NewVm::new("web", &[bytes])).await.unwrap();
    let manifest: &dyn Manifest = &home;
    let state = manifest.load().await.unwrap();
    let base = manifest.open("web.vmdk", true).await.unwrap();
    (home, state, Disk { chain: vec![base], model: vec![0; bytes as usize], rng: Rng::new(seed) })
}

#[test]
fn qemu_reads_our_chains_as_we_do() {
    // Also sizes that are no multiple of a table, a cluster or a page.
    for (seed, bytes) in [(1, 16 << 20), (2, (6 << 20) + 512 * 5), (3, 4096), (4, 512)] {
        let (_guard, path) = scratch();
        let folder = path.clone();
        run(async move |env| {
            let dir = env.open_root(folder.to_str().unwrap()).unwrap();
            let (home, mut state, mut disk) = new_disk(&dir, bytes, seed).await;
            for depth in 0..4 {
                disk.write_randomly().await;
                disk.seal().await;
                assert_eq!(disk.read().await, disk.model, "seed {seed}, depth {depth}");
                let theirs = convert(&folder, &state.disks[0].top);
                assert!(theirs == disk.model, "seed {seed}, depth {depth}: qemu-img reads something else");
                home.set_grain(1 << disk.rng.below(12));
                state = take(&home, &state, &mut disk).await;
            }
            let theirs = convert(&folder, &state.disks[0].top);
            assert!(theirs == disk.model, "seed {seed}: through an empty child");
        });
    }
}

#[test]
fn qemu_understands_our_descriptors() {
    let (_guard, path) = scratch();
    let folder = path.clone();
    run(async move |env| {
        let dir = env.open_root(folder.to_str().unwrap()).unwrap();
        let (home, state, mut disk) = new_disk(&dir, 4 << 20, 1).await;
        let state = take(&home, &state, &mut disk).await;
        let text = qemu_img(&folder, &["info", "--backing-chain", &state.disks[0].top]);
        for expected in [
            "create type: vmfsSparse",
            "create type: vmfs\n",
            "backing file: web.vmdk",
            "virtual size: 4 MiB",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in {text}");
        }
    });
}

#[test]
fn we_read_flat_disks_that_qemu_made() {
    for (subformat, extents) in [("monolithicFlat", "x-flat.vmdk"), ("twoGbMaxExtentFlat", "x-f001.vmdk")] {
        let (_guard, path) = scratch();
        let mut content = vec![0; (3 << 20) + 512];
        Rng::new(9).fill(&mut content);
        std::fs::write(path.join("in.raw"), &content).unwrap();
        let option = format!("subformat={subformat}");
        qemu_img(&path, &["convert", "-f", "raw", "-O", "vmdk", "-o", &option, "in.raw", "x.vmdk"]);
        assert!(path.join(extents).exists());
        run(async move |env| {
            let home = Home::new(env.open_root(path.to_str().unwrap()).unwrap(), Folders::default(), GROWTH);
            let home: &dyn Manifest = &home;
            let chain = home.chain("x.vmdk").await.unwrap();
            assert_eq!((chain.len(), chain[0].format.as_str()), (1, subformat));
            let layer = home.open("x.vmdk", false).await.unwrap();
            let disk = Disk { chain: vec![layer], model: content, rng: Rng::new(0) };
            assert!(disk.read().await == disk.model);
        });
    }
}
