//! Campaigns over repositories on a simulated store: writers, a pruner and cuts at any request. No backup that was reported
//! is ever unreadable. `UNSTUN_REPO_SEED=N` replays one run, `UNSTUN_REPO_RUNS=N` sets the number of runs.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use blk::{ErrorKind, Result};
use futures_util::FutureExt;
use repo::{DiskReader, Grace, Origin, Repository, Secret, Seen, Session, prune, verify};
use world::{Defect, Faults, Random, World, run, run_quietly};

const CHUNK_BYTES: u32 = 4096;
/// Chunks of a disk: two pages of the lowest level.
const CHUNKS: u64 = 400;
const VMS: u64 = 2;
const WRITERS: u64 = 2;
const BACKUPS: u64 = 4;
const RUNS: u64 = 60;

/// Content of a disk: chunks by number, each a number that its bytes repeat. 0 is absent.
type Content = BTreeMap<u64, u64>;

/// What the campaign knows.
#[derive(Default)]
struct Model {
    /// Contents by the note of their backup.
    contents: BTreeMap<String, Content>,
    /// Notes of the backups that were reported, by number.
    reported: BTreeMap<u32, String>,
    /// Backups that somebody may have given up.
    forgotten: BTreeSet<u32>,
    clock_us: u64,
    backups: u64,
    pruned: u64,
    lost_races: u64,
}

type Shared = Arc<Mutex<Model>>;

fn secret() -> Secret {
    Secret::Key([5; 32])
}

fn now(model: &Shared) -> u64 {
    let mut model = model.lock().unwrap();
    model.clock_us += 1;
    model.clock_us
}

fn chunk(content: u64) -> Option<Vec<u8>> {
    (content != 0).then(|| content.to_le_bytes().repeat(CHUNK_BYTES as usize / 8))
}

async fn backup(world: &World, model: &Shared, random: &mut Random, cache: Option<&PathBuf>) -> Result<()> {
    let mut repository = Repository::open(Arc::new(world.clone()), &secret(), "writer").await?;
    let vm = format!("vm{}", random.below(VMS));
    let mut session = Session::begin(&mut repository, cache.map(PathBuf::as_path), now(model)).await?;
    let parent = session.state().latest(&vm).map(|(_, backup)| backup.clone());
    let mut content = parent
        .as_ref()
        .map_or(Content::new(), |parent| model.lock().unwrap().contents[&parent.origin.note].clone());
    let note = format!("note{}", now(model));
    let mut disk = session
        .disk(0, CHUNKS * u64::from(CHUNK_BYTES), parent.as_ref().map(|parent| &parent.disks[0]))
        .await?;
    let mut changes = BTreeMap::new();
    for _ in 0..=random.below(40) {
        // Few contents, so that VMs share chunks.
        changes.insert(random.below(CHUNKS), random.below(30));
    }
    for page in [0..256, 256..CHUNKS] {
        let of_page: Vec<_> = changes.range(page).map(|(n, content)| (*n, chunk(*content))).collect();
        session.write(&mut disk, of_page).await?;
    }
    for (n, value) in changes {
        match value {
            0 => drop(content.remove(&n)),
            _ => drop(content.insert(n, value)),
        }
    }
    session.finish(disk).await?;
    // It is there before the entry can be.
    model.lock().unwrap().contents.insert(note.clone(), content);
    let origin = Origin { vm: vm.clone(), vm_id: vm, note: note.clone(), ..Origin::default() };
    let time = now(model);
    let (number, _) = session.commit(origin, time, time).await?;
    let mut model = model.lock().unwrap();
    model.reported.insert(number, note);
    model.backups += 1;
    Ok(())
}

async fn prune_once(world: &World, model: &Shared, random: &mut Random) -> Result<()> {
    let mut repository = Repository::open(Arc::new(world.for_pruner()), &secret(), "pruner").await?;
    let numbers: Vec<_> = repository.state().backups.keys().copied().collect();
    if !numbers.is_empty() && random.one_in(2) {
        let number = numbers[random.below(numbers.len() as u64) as usize];
        model.lock().unwrap().forgotten.insert(number);
        repository.forget(vec![number], now(model)).await?;
    }
    let mut time_us = || [0, 20, 1000][random.below(3) as usize];
    let grace = Grace { forgotten_us: time_us(), open_us: time_us() };
    let pruned = prune(&mut repository, grace, false, now(model)).await?;
    model.lock().unwrap().pruned += pruned.packs as u64;
    Ok(())
}

/// Errors that writers and pruners may get: passing ones, and those of a lost race.
fn accept(model: &Shared, result: Result<()>, is_defective: bool) {
    let Err(e) = result else { return };
    match e.kind {
        ErrorKind::Io => {}
        ErrorKind::Locked => model.lock().unwrap().lost_races += 1,
        _ if is_defective => {}
        _ => panic!("{:?}: {e}", e.kind),
    }
}

/// Plays one run. Returns what is wrong at its end.
fn play(seed: u64, defect: Defect) -> (Shared, Vec<String>) {
    let mut random = Random(seed);
    let faults = match random.below(3) {
        0 => Faults { refused: 0, unanswered: 0, stale_lists: 3 },
        1 => Faults { refused: 300, unanswered: 300, stale_lists: 5 },
        _ => Faults { refused: 60, unanswered: 60, stale_lists: 2 },
    };
    let (model, world) = (Shared::default(), World::new(seed, faults, defect));
    let caches = tempfile::tempdir().unwrap();
    let made = {
        let world = world.clone();
        async move {
            Repository::init(Arc::new(world), (&secret(), "key"), CHUNK_BYTES, ("admin", 0)).await.map(drop)
        }
    };
    run_quietly(&world, made).unwrap();
    {
        let mut state = world.state.lock().unwrap();
        state.faults = faults;
        state.settle();
    }
    let is_defective = defect != Defect::None;
    let mut tasks = Vec::new();
    for task in 0..=WRITERS {
        let (world, model, mut random) = (world.clone(), model.clone(), Random(random.below(u64::MAX)));
        let cache = random.one_in(2).then(|| caches.path().join(format!("{task}.redb")));
        tasks.push(
            async move {
                for _ in 0..BACKUPS {
                    let result = match task {
                        WRITERS => prune_once(&world, &model, &mut random).await,
                        _ => backup(&world, &model, &mut random, cache.as_ref()).await,
                    };
                    accept(&model, result, is_defective);
                }
            }
            .boxed_local(),
        );
    }
    let cuts = random.one_in(2);
    run(&world, tasks, |random| (cuts && random.one_in(2000)).then(|| random.below(WRITERS + 1) as usize));
    let findings = judge(&world, &model);
    (model, findings)
}

/// Reads every backup that was reported and not given up, and compares it with the model.
fn judge(world: &World, model: &Shared) -> Vec<String> {
    let objects = world.clone();
    let (contents, mut reported) = {
        let model = model.lock().unwrap();
        (model.contents.clone(), model.reported.clone())
    };
    model.lock().unwrap().forgotten.iter().for_each(|number| drop(reported.remove(number)));
    run_quietly(world, async move {
        let repository = match Repository::open(Arc::new(objects), &secret(), "judge").await {
            Ok(repository) => repository,
            Err(e) => return vec![format!("the repository does not open: {e}")],
        };
        let mut findings = Vec::new();
        for (number, note) in &reported {
            match repository.state().backup(*number) {
                Ok(backup) if backup.origin.note == *note => {}
                Ok(_) => findings.push(format!("backup {number} is another one than was reported")),
                Err(e) => findings.push(e.to_string()),
            }
        }
        let mut seen = Seen::default();
        for (number, backup) in &repository.state().backups {
            let content = &contents[&backup.origin.note];
            let reader = DiskReader::new(&repository, &backup.disks[0]);
            for n in 0..CHUNKS {
                let mut found = vec![1; CHUNK_BYTES as usize];
                let read = reader.read(n * u64::from(CHUNK_BYTES), &mut found).await;
                let expected = content.get(&n).and_then(|value| chunk(*value));
                let is_right =
                    read.is_ok() && found == expected.unwrap_or_else(|| vec![0; CHUNK_BYTES as usize]);
                if !is_right {
                    findings.push(format!("backup {number}: chunk {n} is wrong: {read:?}"));
                    break;
                }
            }
            match verify(&repository, (*number, backup), 1, &mut seen, &mut |_| Ok(())).await {
                Ok(verified) => findings.extend(verified.findings),
                Err(e) => findings.push(e.to_string()),
            }
        }
        findings
    })
}

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn no_reported_backup_is_ever_unreadable() {
    let seeds = match variable("UNSTUN_REPO_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + variable("UNSTUN_REPO_RUNS").unwrap_or(RUNS),
    };
    let (mut backups, mut pruned, mut lost_races) = (0, 0, 0);
    for seed in seeds.clone() {
        let (model, findings) = play(seed, Defect::None);
        let replay = format!(
            "UNSTUN_REPO_SEED={seed} cargo test -p repo --test crash_campaigns no_reported_backup_is_ever_unreadable"
        );
        assert!(findings.is_empty(), "seed {seed}\n{}\n{replay}", findings.join("\n"));
        let model = model.lock().unwrap();
        (backups, pruned) = (backups + model.backups, pruned + model.pruned);
        lost_races += model.lost_races;
    }
    println!(
        "{} runs: {backups} backups, {pruned} packs reclaimed, {lost_races} races lost",
        seeds.end - seeds.start
    );
    if seeds.end - seeds.start > 20 {
        assert!(
            backups > 50 && pruned > 20 && lost_races > 0,
            "the campaign does not reach what it is about"
        );
    }
}

#[test]
fn planted_defects_are_found() {
    for defect in [Defect::Replaces, Defect::LosesPacks, Defect::UnseenSweeps] {
        let found = (1..200).find(|seed| !play(*seed, defect).1.is_empty());
        assert!(found.is_some(), "{defect:?} was not found in 199 runs");
        println!("{defect:?}: seed {}", found.unwrap());
    }
}
