//! The contract of [`Volume`].

use std::ops::Range;
use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::volume::{STATUS_PIECES_MAX, Volume, ZeroMode};
use blk::{Buf, Dir, Env, Errno, ErrorKind, SECTOR};
use engine::native::space::Growth as StoreGrowth;
use engine::native::{NativeVm, NewStore, Store, StoreOptions};
use engine::relocate::Relocation;
use engine::{Job, Machine, Options, Vm};
use lab::plain::Plain;
use sim::{Action, Fault, OpKind, Rng, SimWorld};
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

use super::{SEED, in_both_worlds};

const DISK_BYTES: u64 = 3 << 20;
const GROWTH: Growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };
const STEPS: u64 = 120;
/// Pieces that one step of a status may report beyond its limit: every sector of 8 MiB.
const STATUS_STEP_PIECES: usize = (8 << 20) / SECTOR as usize;

async fn home_of_files(root: &Dir) -> Dir {
    let dir = root.open_dir("redo", true).await.unwrap();
    let new = NewVm::new("redo", &[DISK_BYTES]);
    Home::create(dir.clone(), Folders::default(), GROWTH, new).await.unwrap();
    dir
}

async fn redo(env: &Env, root: &Dir) -> Rc<dyn Machine> {
    open_files(env, home_of_files(root).await).await
}

async fn open_files(env: &Env, dir: Dir) -> Rc<dyn Machine> {
    let home = Home::new(dir, Folders::default(), GROWTH);
    let options = Options { reserve_bytes: 1 << 20, ..Options::default() };
    Vm::open(env.clone(), Rc::new(home), options).await.unwrap()
}

async fn native_like(env: &Env, root: &Dir, source: &dyn Machine) -> Rc<dyn Machine> {
    let file = root.create_new("store").await.unwrap();
    Store::format(env, &file, NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT })
        .await
        .unwrap();
    let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
    let store = Store::open(env.clone(), file, options, StoreGrowth::default(), true).await.unwrap();
    let id = store.new_vm_id();
    store.create_vm_like(id, "native", &source.state().disks).await.unwrap();
    NativeVm::open(&store, id, Options::default()).await.unwrap()
}

async fn native(env: &Env, root: &Dir) -> Rc<dyn Machine> {
    let like = redo(env, root).await;
    native_like(env, root, &*like).await
}

async fn read(disk: &Rc<dyn Volume>, range: Range<u64>) -> Vec<u8> {
    let len = (range.end - range.start) as usize;
    let (buf, result) = disk.clone().read(range.start, Buf::alloc(len)).await;
    result.unwrap();
    assert_eq!(buf.len(), len, "a read gives back the buffer that it was given");
    buf.to_vec()
}

/// The disk, and its expected content.
struct Subject {
    disk: Rc<dyn Volume>,
    model: Vec<u8>,
    rng: Rng,
}

impl Subject {
    async fn new(disk: Rc<dyn Volume>) -> Subject {
        let info = disk.info();
        assert!(info.size_bytes > 0 && info.size_bytes.is_multiple_of(SECTOR), "{info:?}");
        assert!(
            info.preferred_bytes.is_power_of_two() && u64::from(info.preferred_bytes) >= SECTOR,
            "{info:?}"
        );
        let model = read(&disk, 0..info.size_bytes).await;
        Subject { disk, model, rng: Rng::new(SEED) }
    }

    /// Draws a range. The ends of the disk and the whole of it are more likely than others.
    fn draw(&mut self) -> Range<u64> {
        let last = self.model.len() as u64 / SECTOR;
        let (first, count) = match self.rng.below(12) {
            0 => (0, 1),
            1 => (last - 1, 1),
            2 => (0, last),
            _ => {
                let first = self.rng.below(last);
                (first, 1 + self.rng.below((last - first).min(300)))
            }
        };
        first * SECTOR..(first + count) * SECTOR
    }

    fn expected(&mut self, range: &Range<u64>) -> &mut [u8] {
        &mut self.model[range.start as usize..range.end as usize]
    }

    async fn shows_the_model(&mut self, range: Range<u64>) {
        let found = read(&self.disk, range.clone()).await;
        assert!(found == self.expected(&range), "{range:?} does not show what was written");
    }

    async fn write(&mut self, range: Range<u64>) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.rng.fill(&mut bytes);
        self.disk.clone().write(range.start, Buf::copy_of(&bytes).freeze()).await.unwrap();
        self.expected(&range).copy_from_slice(&bytes);
        self.shows_the_model(range).await;
    }

    /// Writes zeros. A request for fast zeros may be refused if the refusal changes nothing. Reserved space stays
    /// reserved.
    async fn zero(&mut self, range: Range<u64>) {
        let mode = ZeroMode { no_hole: self.rng.coin(), fast_only: self.rng.coin() };
        match self.disk.clone().write_zeroes(range.clone(), mode).await {
            Ok(()) => {
                assert!(
                    !mode.fast_only || self.disk.info().fast_zero,
                    "zeros were written where none may be"
                );
                self.expected(&range).fill(0);
            }
            Err(e) => {
                assert!(mode.fast_only && e.kind == ErrorKind::Unsupported, "{mode:?}: {e}");
            }
        }
        self.shows_the_model(range).await;
    }

    /// Discards a range, which is a hint: each sector keeps its data or becomes zeros, and does not change after that.
    async fn discard(&mut self, range: Range<u64>) {
        self.disk.clone().discard(range.clone()).await.unwrap();
        let found = read(&self.disk, range.clone()).await;
        let sector = SECTOR as usize;
        for (found, before) in found.chunks(sector).zip(self.expected(&range).chunks(sector)) {
            assert!(found == before || found.iter().all(|byte| *byte == 0), "{range:?} shows something else");
        }
        self.expected(&range).copy_from_slice(&found);
        self.shows_the_model(range).await;
    }

    /// Queries the status of a range, each time from the end of the previous reply. Pieces reported as zeros must read
    /// as zeros.
    async fn status(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let pieces = self.disk.clone().status(at..range.end).await.unwrap();
            assert!(!pieces.is_empty() && pieces.len() <= STATUS_PIECES_MAX + STATUS_STEP_PIECES);
            for piece in &pieces {
                assert!(
                    piece.len > 0 && piece.len.is_multiple_of(SECTOR) && at + piece.len <= range.end,
                    "{piece:?}"
                );
                let bytes = self.expected(&(at..at + piece.len));
                assert!(!piece.zero || bytes.iter().all(|byte| *byte == 0), "{at} {piece:?} has data");
                at += piece.len;
            }
        }
    }

    async fn step(&mut self) {
        let range = self.draw();
        match self.rng.below(8) {
            0 | 1 => self.zero(range).await,
            2 => self.discard(range).await,
            3 => self.status(range).await,
            4 => self.shows_the_model(range).await,
            _ => self.write(range).await,
        }
    }
}

/// Tests all operations of a front end on a writable disk.
async fn keeps_the_contract(disk: Rc<dyn Volume>) {
    assert!(!disk.info().read_only);
    let mut subject = Subject::new(disk).await;
    let whole = 0..subject.model.len() as u64;
    for step in 0..STEPS {
        subject.step().await;
        if step % 40 == 0 {
            subject.disk.clone().flush().await.unwrap();
            subject.disk.abandon();
            subject.shows_the_model(whole.clone()).await;
        }
    }
    subject.status(whole.clone()).await;
    subject.shows_the_model(whole).await;
}

/// Tests a read-only disk: it refuses every change, and accepts a flush, which changes nothing.
async fn keeps_the_contract_read_only(disk: Rc<dyn Volume>) {
    let info = disk.info();
    assert!(info.read_only && !info.fast_zero, "{info:?}");
    let mut subject = Subject::new(disk.clone()).await;
    let range = subject.draw();
    let data = Buf::zeroed((range.end - range.start) as usize).freeze();
    let refused = [
        disk.clone().write(range.start, data).await,
        disk.clone().discard(range.clone()).await,
        disk.clone().write_zeroes(range.clone(), ZeroMode::default()).await,
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind, ErrorKind::Refused);
    }
    disk.clone().flush().await.unwrap();
    let whole = 0..subject.model.len() as u64;
    subject.status(whole.clone()).await;
    subject.shows_the_model(whole).await;
}

/// Tests the running disk at each height of a tree, and each sealed state of it.
async fn a_machine_keeps_it(vm: Rc<dyn Machine>) {
    for name in ["a", "b"] {
        let (disk, client) = vm.attach(0, "contract").await.unwrap();
        keeps_the_contract(disk).await;
        drop(client);
        vm.clone().take(name, "").await.unwrap();
    }
    let (disk, _client) = vm.attach(0, "contract").await.unwrap();
    keeps_the_contract(disk).await;
    for name in ["a", "b"] {
        let (disk, _view) = vm.open_view(name, 0, "contract").await.unwrap();
        keeps_the_contract_read_only(disk).await;
    }
}

#[test]
fn disks_in_files_keep_it() {
    in_both_worlds(|env, root| async move { a_machine_keeps_it(redo(&env, &root).await).await });
}

/// Moves the second half of the disk to a file of its own.
async fn split(dir: &Dir) {
    let bytes = dir.read_file("redo.vmdk", 64 << 10).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let extent = text.lines().find(|line| line.starts_with("RW ")).unwrap();
    let half = DISK_BYTES / SECTOR / 2;
    let halves = format!("RW {half} FLAT \"redo-flat.vmdk\" 0\nRW {half} FLAT \"second.vmdk\" 0");
    dir.create_new("second.vmdk").await.unwrap().set_len(DISK_BYTES / 2).await.unwrap();
    dir.open("redo-flat.vmdk", OpenMode::Write).await.unwrap().set_len(DISK_BYTES / 2).await.unwrap();
    dir.replace_file("redo.vmdk", text.replace(extent, &halves).as_bytes()).await.unwrap();
}

async fn fast_zeros_are_all_or_nothing(disk: Rc<dyn Volume>) {
    let half = DISK_BYTES / 2;
    let fast = ZeroMode { fast_only: true, ..ZeroMode::default() };
    let mut subject = Subject::new(disk.clone()).await;
    subject.write(0..DISK_BYTES).await;
    let only_second = disk.clone().write_zeroes(half + SECTOR..DISK_BYTES, fast).await;
    assert_eq!(only_second.unwrap_err().kind, ErrorKind::Unsupported);
    subject.shows_the_model(0..DISK_BYTES).await;
    let both = half - 64 * SECTOR..half + 64 * SECTOR;
    disk.clone().write_zeroes(both.clone(), fast).await.unwrap();
    subject.expected(&both).fill(0);
    subject.shows_the_model(0..DISK_BYTES).await;
}

#[test]
fn a_disk_in_two_files_of_which_one_cannot_punch_keeps_it() {
    let world = SimWorld::new(SEED, sim::Options::default());
    let cannot = Fault::nth(1, Action::Fail(Errno::EOPNOTSUPP)).of(OpKind::GiveBack).named("second");
    world.add_fault(cannot.and_all_later());
    let script = |env: Env| async move {
        let dir = home_of_files(&env.open_root("/").unwrap()).await;
        split(&dir).await;
        let vm = open_files(&env, dir).await;
        let (disk, _client) = vm.attach(0, "contract").await.unwrap();
        fast_zeros_are_all_or_nothing(disk.clone()).await;
        keeps_the_contract(disk).await;
    };
    world.run(script).expect("no power cut is scheduled");
}

#[test]
fn native_disks_keep_it() {
    in_both_worlds(|env, root| async move { a_machine_keeps_it(native(&env, &root).await).await });
}

#[test]
fn disks_that_move_keep_it() {
    in_both_worlds(|env, root| async move {
        let source = redo(&env, &root).await;
        let target = native_like(&env, &root, &*source).await;
        let job = Job::new(env.clone(), 1, "move", String::new());
        let moving = Relocation::new(source.clone(), target.clone(), job);
        let (_, mirror) = moving.mirrors().await.unwrap().remove(0);
        keeps_the_contract(mirror.clone()).await;
        moving.copy_running().await.unwrap();
        keeps_the_contract(mirror).await;
    });
}

#[test]
fn the_flat_file_of_the_lab_keeps_it() {
    in_both_worlds(|_, root| async move {
        let file = root.create_new("plain").await.unwrap();
        file.set_len(DISK_BYTES).await.unwrap();
        keeps_the_contract(Rc::new(Plain::new(file, DISK_BYTES))).await;
    });
}
