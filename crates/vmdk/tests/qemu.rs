//! QEMU reads what we write, byte for byte, and we read what QEMU writes. On real files through io_uring; needs qemu-img,
//! which scripts/setup.sh installs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use blk::layer::{Layer, Where};
use blk::manifest::{Change, Manifest, SnapshotState, VmState};
use blk::uring::UringReactor;
use blk::{Buf, Dir, Env, Executor, SECTOR};
use sim::Rng;
use vmdk::home::{Folders, Home, NewVm};
use vmdk::vmfssparse::Growth;

const GROWTH: Growth = Growth { step_bytes: 1 << 20, chunk_bytes: 256 << 10 };

fn run<F: Future<Output = ()> + 'static>(main: impl FnOnce(Env) -> F) {
    let executor = Executor::new(Rc::new(UringReactor::new().unwrap()));
    let env = executor.env();
    executor.run(main(env)).expect("nothing is under way and the test is not done");
}

fn scratch(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix(name).tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().to_path_buf();
    (folder, path)
}

fn qemu_img(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("qemu-img").args(arguments).current_dir(folder).output();
    let output = output.expect("qemu-img is installed by scripts/setup.sh");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {}: {errors}", arguments.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

fn convert(folder: &Path, descriptor: &str) -> Vec<u8> {
    qemu_img(folder, &["convert", "-f", "vmdk", "-O", "raw", descriptor, "out.raw"]);
    std::fs::read(folder.join("out.raw")).unwrap()
}

/// A chain of layers as the guest sees it, and what it should show.
struct Disk {
    chain: Vec<Rc<dyn Layer>>,
    model: Vec<u8>,
    rng: Rng,
}

impl Disk {
    /// Random runs of sectors, some of whole pages, some across the edges of tables.
    async fn write_randomly(&mut self, count: usize) {
        let sectors = self.model.len() as u64 / SECTOR;
        for _ in 0..count {
            let length = [1, 3, 8, 64, 5000][self.rng.below(5) as usize].min(sectors);
            let mut at = self.rng.below(sectors - length + 1);
            if length % 8 == 0 {
                at = at / 8 * 8;
            }
            let mut data = vec![0; (length * SECTOR) as usize];
            self.rng.fill(&mut data);
            self.write(at * SECTOR, &data).await;
        }
    }

    async fn write(&mut self, at: u64, data: &[u8]) {
        self.model[at as usize..at as usize + data.len()].copy_from_slice(data);
        let top = self.chain.last().unwrap();
        for run in top.lookup(at..at + data.len() as u64).await.unwrap() {
            let part = Buf::copy_of(&data[(run.start - at) as usize..(run.end() - at) as usize]);
            if let Where::Data { file, offset } = run.place {
                top.files()[usize::from(file)].write(offset, part).await.unwrap();
                continue;
            }
            let placement = top.place(run.start..run.end()).await.unwrap();
            let [placed] = &placement.runs[..] else { panic!("{placement:?}") };
            let Where::Data { file, offset } = placed.place else { panic!("{placed:?}") };
            top.files()[usize::from(file)].write(offset, part).await.unwrap();
            top.publish(&placement);
        }
    }

    async fn read(&self) -> Vec<u8> {
        let mut content = vec![0; self.model.len()];
        for layer in &self.chain {
            for run in layer.lookup(0..self.model.len() as u64).await.unwrap() {
                let Where::Data { file, offset } = run.place else { continue };
                let buf = Buf::alloc(run.len as usize);
                let (buf, result) = layer.files()[usize::from(file)].read(offset, buf).await;
                result.unwrap();
                content[run.start as usize..run.end() as usize].copy_from_slice(&buf);
            }
        }
        content
    }

    async fn seal(&self) {
        let top = self.chain.last().unwrap();
        let stages = top.stages();
        let batches = [stages.early].into_iter().chain(stages.late);
        for batch in batches {
            for write in &batch {
                top.files()[usize::from(write.file)].write(write.offset, write.data.clone()).await.unwrap();
            }
            for file in top.files() {
                file.flush().await.unwrap();
            }
        }
        top.settle(stages.ticket);
        top.seal().await.unwrap();
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
        let (_guard, path) = scratch("chain");
        let folder = path.clone();
        run(async move |env| {
            let dir = env.open_root(folder.to_str().unwrap()).unwrap();
            let (home, mut state, mut disk) = new_disk(&dir, bytes, seed).await;
            for depth in 0..4 {
                disk.write_randomly(20).await;
                disk.seal().await;
                assert_eq!(disk.read().await, disk.model, "seed {seed}, depth {depth}");
                let theirs = convert(&folder, &state.disks[0].top);
                assert!(theirs == disk.model, "seed {seed}, depth {depth}: qemu-img reads something else");
                state = take(&home, &state, &mut disk).await;
            }
            let theirs = convert(&folder, &state.disks[0].top);
            assert!(theirs == disk.model, "seed {seed}: through an empty child");
        });
    }
}

#[test]
fn qemu_understands_our_descriptors() {
    let (_guard, path) = scratch("info");
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
        let (_guard, path) = scratch("flat");
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
