//! Corruption of metadata pages under a closed store: a changed bit, another page in their place, an older version,
//! zeros. Every later read returns right content or an error.

use std::rc::Rc;

use engine::Defects;
use engine::native::layout::BLOCK;
use sim::{Rng, View};

use super::harness::{FILE, Harness};
use super::script::{Actor, Operation, Script};
use crate::campaign::caught;

/// First words of the pages that hold metadata: superblock, journal, map, catalogue, bitmap.
const MAGICS: [&[u8; 8]; 5] = [b"unstunSB", b"unstunJB", b"unstnMAP", b"unstCATA", b"UnstnBmp"];

/// Way in which a page is corrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corruption {
    /// One bit, drawn from the block's number.
    Bit,
    /// The content of the next page of the same kind.
    Misdirected,
    /// The content at the clean stop before.
    Stale,
    Zeros,
}

pub const CORRUPTIONS: [Corruption; 4] =
    [Corruption::Bit, Corruption::Misdirected, Corruption::Stale, Corruption::Zeros];

/// Content of a closed store, now and at the clean stop before.
struct Closed {
    older: Vec<u8>,
    newer: Vec<u8>,
}

/// Damages each page of metadata in turn. Returns how many were damaged, and how often the damage was noticed.
pub fn run_corruption(corruption: Corruption) -> Result<(u64, u64), String> {
    let closed = Closed::make()?;
    let (mut pages, mut noticed) = (0, 0);
    for block in closed.metadata() {
        let Some(bytes) = closed.damaged(corruption, block) else { continue };
        let result = caught(|| {
            let (script, _) = closed_script()?;
            script.run.world.write_at(FILE, block * BLOCK, &bytes);
            look(&script)
        });
        pages += 1;
        noticed += u64::from(result.map_err(|e| format!("{corruption:?} of block {block}: {e}"))?);
    }
    Ok((pages, noticed))
}

/// Makes the same closed store at every call, after two clean stops. Returns its content after the first, too.
fn closed_script() -> Result<(Script, Vec<u8>), String> {
    let script = Script::begin(Defects::default())?;
    script.boot(&[Operation::Reopen])?;
    let older = content(&script);
    script.boot(&[Operation::Write, Operation::Take, Operation::Overwrite, Operation::Reopen])?;
    Ok((script, older))
}

fn content(script: &Script) -> Vec<u8> {
    script.run.world.read_file(FILE, View::Durable).expect("it was made")
}

impl Closed {
    fn make() -> Result<Closed, String> {
        let (script, older) = closed_script()?;
        Ok(Closed { newer: content(&script), older })
    }

    fn page(&self, block: u64) -> &[u8] {
        &self.newer[(block * BLOCK) as usize..][..BLOCK as usize]
    }

    fn metadata(&self) -> Vec<u64> {
        let blocks = self.newer.len() as u64 / BLOCK;
        let is_metadata = |block: &u64| MAGICS.iter().any(|magic| self.page(*block).starts_with(&magic[..]));
        (0..blocks).filter(is_metadata).collect()
    }

    /// Returns the damaged page; None if nothing would change.
    fn damaged(&self, corruption: Corruption, block: u64) -> Option<Vec<u8>> {
        let mut page = self.page(block).to_vec();
        match corruption {
            Corruption::Bit => {
                let mut rng = Rng::new(block);
                page[rng.below(BLOCK) as usize] ^= 1 << rng.below(8);
            }
            Corruption::Misdirected => {
                let alike = self.metadata().into_iter().filter(|n| self.page(*n)[..8] == page[..8]);
                page = self.page(alike.clone().find(|n| *n > block).or(alike.min())?).to_vec();
            }
            Corruption::Stale => {
                page = self.older.get((block * BLOCK) as usize..)?.get(..BLOCK as usize)?.to_vec();
            }
            Corruption::Zeros => page.fill(0),
        }
        (page != self.page(block)).then_some(page)
    }
}

/// Reads everything, writes, and reads the snapshots again. Returns true if the store reported an error; wrong content
/// is an error of this function.
fn look(script: &Script) -> Result<bool, String> {
    script.run.prepare(async |env, run| {
        let Ok(harness) = Harness::open(&env, &run, 0).await else { return Ok(true) };
        let mut noticed = harness.store.broken().is_some();
        noticed |= compare(&harness).await?;
        noticed |= !work(&harness).await;
        noticed |= compare_snapshots(&harness).await?;
        noticed |= harness.store.close().await.is_err();
        Ok(noticed)
    })
}

async fn compare(harness: &Rc<Harness>) -> Result<bool, String> {
    let mut noticed = compare_snapshots(harness).await?;
    let machines = harness.model.borrow().machines.values().flat_map(|m| m.disks.clone()).collect::<Vec<_>>();
    for disk in machines {
        match harness.read_nodes(&[disk.node], &[disk.windows]).await {
            Ok(contents) => disk.model.check_cut(&contents[0])?,
            Err(_) => noticed = true,
        }
    }
    Ok(noticed)
}

async fn compare_snapshots(harness: &Rc<Harness>) -> Result<bool, String> {
    let mut noticed = false;
    let sealed = harness.model.borrow().sealed();
    for number in sealed {
        match harness.look(number).await {
            Err(e) if e.contains(" shows ") || e.contains("changed") => return Err(e),
            Err(_) => noticed = true,
            Ok(_) => {}
        }
    }
    Ok(noticed)
}

/// Returns whether writes, a flush and a checkpoint succeeded.
async fn work(harness: &Rc<Harness>) -> bool {
    if harness.start(super::FIRST_MACHINE).is_err() {
        return false;
    }
    let mut actor = Actor::of(harness);
    let mut well = true;
    for operation in [Operation::Overwrite, Operation::Write, Operation::Flush, Operation::Checkpoint] {
        well &= actor.act(operation).await.is_ok();
    }
    well
}
