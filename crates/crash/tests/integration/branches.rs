//! Forty snapshots in a tree of branches of a VM with twelve disks: everything reads back. The cost of an operation
//! grows with the disks that it concerns, not with the layers in the home.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, SECTOR};
use engine::{CommitWhat, Disk, JobState, Options, Vm};
use sim::SimWorld;
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

const SEED: u64 = 40;
const DISKS: usize = 12;
const DISK_BYTES: u64 = 64 << 10;
const BRANCHES: u64 = 4;
const SNAPSHOTS_PER_BRANCH: u64 = 10;
const GROWTH: Growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };

type Content = Vec<Vec<u8>>;
type Answer<T> = Result<T, Box<dyn std::error::Error>>;

/// The VM, and the expected content of each of its states.
struct Harness {
    world: SimWorld,
    vm: Rc<Vm>,
    running: Content,
    snapshots: BTreeMap<String, Content>,
}

impl Harness {
    async fn new(world: SimWorld, env: &Env) -> Answer<Harness> {
        let disks = [DISK_BYTES; DISKS];
        Home::create(env.open_root("/web")?, Folders::default(), GROWTH, NewVm::new("web", &disks)).await?;
        let vm = open(env).await?;
        Ok(Harness {
            world,
            vm,
            running: vec![vec![0; DISK_BYTES as usize]; DISKS],
            snapshots: BTreeMap::new(),
        })
    }

    /// Writes two sectors of each disk, at different places for each `stamp`.
    async fn write(&mut self, stamp: u64) -> Answer<()> {
        for (number, content) in self.running.iter_mut().enumerate() {
            let (disk, _client) = self.vm.attach(number as u32, "test").await?;
            let sectors = DISK_BYTES / SECTOR;
            for sector in [stamp % sectors, (stamp * 37 + number as u64) % sectors] {
                let data = vec![(stamp + 1) as u8; SECTOR as usize];
                let at = (sector * SECTOR) as usize;
                content[at..at + data.len()].copy_from_slice(&data);
                disk.clone().write(sector * SECTOR, Buf::copy_of(&data).freeze()).await?;
            }
            disk.clone().flush().await?;
        }
        Ok(())
    }

    async fn take(&mut self, name: &str) -> Answer<()> {
        self.vm.take(name, "").await?;
        self.snapshots.insert(name.into(), self.running.clone());
        Ok(())
    }

    async fn revert(&mut self, name: &str) -> Answer<()> {
        self.vm.revert(Some(name), None, false).await?;
        self.running = self.snapshots[name].clone();
        Ok(())
    }

    async fn discard(&mut self, name: &str) -> Answer<()> {
        for gone in self.vm.discard(name, false).await?.snapshots {
            self.snapshots.remove(&gone);
        }
        Ok(())
    }

    async fn commit(&mut self, what: CommitWhat) -> Answer<()> {
        let job = self.vm.commit(&what).await?;
        let state = job.wait().await;
        assert_eq!(state, JobState::Done, "{:?}", job.error());
        let left: Vec<String> = self.vm.state().snapshots.into_iter().map(|s| s.name).collect();
        self.snapshots.retain(|name, _| left.contains(name));
        Ok(())
    }

    /// Makes four branches of ten snapshots: each begins in the middle of an earlier one.
    async fn grow_tree(&mut self) -> Answer<()> {
        for branch in 0..BRANCHES {
            if branch > 0 {
                self.revert(&format!("s{}", branch * SNAPSHOTS_PER_BRANCH - SNAPSHOTS_PER_BRANCH / 2))
                    .await?;
            }
            for at in 0..SNAPSHOTS_PER_BRANCH {
                let number = branch * SNAPSHOTS_PER_BRANCH + at;
                self.write(number).await?;
                self.take(&format!("s{number}")).await?;
            }
        }
        assert_eq!(self.vm.state().snapshots.len() as u64, BRANCHES * SNAPSHOTS_PER_BRANCH);
        self.write(200).await
    }

    async fn start_again(&mut self, env: &Env) -> Answer<()> {
        self.vm.close().await?;
        self.vm = open(env).await?;
        Ok(())
    }

    async fn check(&self, after: &str) -> Answer<()> {
        for (number, content) in self.running.iter().enumerate() {
            let disk = self.vm.disk(number as u32)?;
            assert!(read(&disk).await? == *content, "{after}: disk{number} reads wrong");
        }
        let names: Vec<String> = self.vm.state().snapshots.into_iter().map(|s| s.name).collect();
        assert_eq!(names.len(), self.snapshots.len(), "{after}: {names:?}");
        assert!(self.snapshots.keys().all(|name| names.contains(name)), "{after}: {names:?}");
        for (name, contents) in &self.snapshots {
            for (number, content) in contents.iter().enumerate() {
                let (disk, _view) = self.vm.open_view(name, number as u32, "test").await?;
                assert!(read(&disk).await? == *content, "{after}: disk{number} of {name} reads wrong");
            }
        }
        Ok(())
    }
}

async fn open(env: &Env) -> Answer<Rc<Vm>> {
    // The home searches the whole datastore for clones, as in the daemon.
    let folders = Folders { search: vec![env.open_root("/")?], ..Folders::default() };
    let home = Home::new(env.open_root("/web")?, folders, GROWTH);
    Ok(Vm::open(env.clone(), Rc::new(home), Options { reserve_bytes: 0, ..Options::default() }).await?)
}

async fn read(disk: &Rc<Disk>) -> Answer<Vec<u8>> {
    let (buf, result) = disk.clone().read(0, Buf::alloc(disk.size_bytes() as usize)).await;
    result?;
    Ok(buf.to_vec())
}

/// Checks that one operation takes at most `most` I/Os for each disk, and looks at everything afterwards.
async fn costs(
    harness: &mut Harness,
    what: &str,
    most: u64,
    act: impl AsyncFnOnce(&mut Harness) -> Answer<()>,
) {
    let before = harness.world.ios();
    act(harness).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let each = (harness.world.ios() - before).div_ceil(DISKS as u64);
    println!("{what}: {each} I/Os for each disk");
    assert!(each <= most, "{what}: {each} I/Os for each disk, expected at most {most}");
    harness.check(what).await.unwrap_or_else(|e| panic!("after {what}: {e}"));
}

/// Every bound is a quarter above what the operation takes. A commit folds one delta of each disk, or eleven if all are
/// committed. A revert opens a chain of ten layers, and a discard looks at each layer that it removes.
#[test]
fn forty_snapshots_in_branches_cost_no_more_than_their_disks() {
    let world = SimWorld::new(SEED, sim::Options::default());
    let inside = world.clone();
    let act = async move |env: Env| -> Answer<()> {
        let mut harness = Harness::new(inside, &env).await?;
        harness.grow_tree().await?;
        harness.check("the tree").await?;
        let s = &mut harness;
        costs(s, "take", 60, async |s| s.take("last").await).await;
        costs(s, "commit of the latest", 240, async |s| s.commit(one("last")).await).await;
        costs(s, "commit of an older one", 300, async |s| s.commit(one("s32")).await).await;
        costs(s, "revert to a side branch", 210, async |s| s.revert("s8").await).await;
        costs(s, "discard of a side branch", 620, async |s| s.discard("s37").await).await;
        costs(s, "revert to the latest", 130, async |s| s.revert("s8").await).await;
        costs(s, "a start", 390, async |s| s.start_again(&env).await).await;
        costs(s, "commit of all", 1200, async |s| s.commit(CommitWhat::All).await).await;
        Ok(())
    };
    world.run(async move |env| act(env).await.unwrap());
}

fn one(name: &str) -> CommitWhat {
    CommitWhat::One(name.into())
}
