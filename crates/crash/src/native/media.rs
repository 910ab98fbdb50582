//! Openings on bad media: sectors whose write was under way at a power cut may be unreadable, and so may superblocks.

use std::rc::Rc;

use blk::volume::Volume;
use blk::{Buf, Env, SECTOR};
use engine::native::NativeDisk;
use engine::native::layout::{BLOCK, HEADER_BLOCKS};
use engine::native::superblock::{SLOT_BLOCKS, Superblock};
use sim::{SimWorld, View};

use super::harness::{FILE, Harness, open_file};
use super::model::{Existence, ExpectedDisk, NativeRun};
use super::plan::Plan;
use crate::watch::print;

/// Makes the newest superblock unreadable, though it was durable. Returns false if the other slot holds none.
fn make_superblock_unreadable(world: &SimWorld) -> bool {
    let slots = SLOT_BLOCKS.map(|block| world.read_at(FILE, block * BLOCK, BLOCK, View::Durable));
    let decoded = [0, 1].map(|slot| Superblock::decode(slots[slot].as_ref()?, slot, FILE).ok());
    let [Some(a), Some(b)] = decoded else { return false };
    let newest = usize::from(b.checkpoint > a.checkpoint);
    let at = SLOT_BLOCKS[newest] * BLOCK;
    print(|| format!("superblock {newest} of checkpoint {} is unreadable", a.checkpoint.max(b.checkpoint)));
    world.make_unreadable(FILE, at..at + BLOCK)
}

/// Counts the superblocks and the journal pages that cannot be read.
fn unreadable_pages(world: &SimWorld, plan: &Plan) -> (usize, usize) {
    let ranges = world.unreadable(FILE);
    let strikes = |block: &u64| {
        ranges.iter().any(|range| range.start < (block + 1) * BLOCK && block * BLOCK < range.end)
    };
    let journal = HEADER_BLOCKS..HEADER_BLOCKS + plan.layout.journal_pages;
    (
        SLOT_BLOCKS.iter().filter(|block| strikes(block)).count(),
        journal.filter(|block| strikes(block)).count(),
    )
}

/// Returns whether a slot holds no superblock, because its write was cut. Beside a page of the journal that cannot be read the
/// other slot does not count (docs/formats/native.md): both may have been written when the power went, or the slot may have
/// been damaged later.
async fn has_torn_superblock(env: &Env) -> bool {
    let Ok(file) = open_file(env).await else { return false };
    Superblock::read(&file).await.is_ok_and(|slots| slots.other.is_some())
}

/// Opens the store. The opening may be refused, or the store be read-only, if one fault does not explain what cannot be
/// read. The store must open once everything can be read again.
pub(super) async fn open_anyway(env: &Env, run: &NativeRun, boot: u64) -> Result<Rc<Harness>, String> {
    let NativeRun { world, plan, model, .. } = run;
    let loses_superblocks = plan.loses_superblock(boot) && make_superblock_unreadable(world);
    let (superblocks, pages) = unreadable_pages(world, plan);
    // An earlier boot may have made it unreadable, and may have been cut before it wrote another superblock.
    let superblock_lost = superblocks > 0 && (loses_superblocks || model.borrow().superblock_lost);
    model.borrow_mut().superblock_lost = superblock_lost;
    let opened = Harness::open(env, run, boot).await;
    let refused = match &opened {
        Ok(harness) => harness.store.broken(),
        Err(e) => Some(e.clone()),
    };
    for (happened, label) in [
        (superblock_lost, "the newest superblock was unreadable"),
        (!superblock_lost && superblocks > 0, "a superblock was unreadable"),
        (pages > 0, "a page of the journal was unreadable"),
    ] {
        if happened {
            world.mark(label);
            world.mark(if refused.is_some() { "an opening was refused" } else { "opened all the same" });
        }
    }
    let Some(cause) = refused else { return opened.map_err(|e| format!("opening the store: {e}")) };
    let one_fault = !superblock_lost && pages < 2 && pages + superblocks < 2;
    if one_fault && !(pages == 1 && has_torn_superblock(env).await) {
        return Err(format!(
            "opening the store, of which {superblocks} superblocks and {pages} journal pages cannot be read: {cause}"
        ));
    }
    print(|| format!("refused: {cause}"));
    drop(opened);
    world.heal(FILE);
    let opened = Harness::open(env, run, boot).await;
    opened.map_err(|e| format!("opening the store, all of which can be read: {e}"))
}

impl Harness {
    /// Checks that unreadable sectors belong to writes that no flush covered. Makes all sectors readable again.
    pub async fn check_unreadable(&self) -> Result<(), String> {
        let ranges = self.world.unreadable(FILE);
        if ranges.is_empty() {
            return Ok(());
        }
        print(|| format!("unreadable: {ranges:?}"));
        self.mark("sectors were unreadable");
        let sealed = self.model.borrow().sealed();
        for number in sealed {
            let (nodes, windows) = self.model.borrow().snapshot(number);
            self.read_nodes(&nodes, &windows).await.map_err(|e| format!("sealed snapshot {number}: {e}"))?;
        }
        for (disk, known) in self.settled_disks().map_err(|e| e.to_string())? {
            self.check_readable(&disk, &known).await?;
        }
        self.world.heal(FILE);
        Ok(())
    }

    /// Returns the disks for which no change was under way.
    fn settled_disks(&self) -> blk::Result<Vec<(Rc<NativeDisk>, ExpectedDisk)>> {
        let model = self.model.borrow();
        let settled =
            model.machines.values().filter(|m| m.existence == Existence::There && m.moving.is_none());
        let disks =
            settled.flat_map(|m| m.disks.iter().enumerate()).filter(|(_, disk)| disk.growing.is_none());
        disks.map(|(n, known)| Ok((self.disk(known.node, n)?, known.clone()))).collect()
    }

    async fn check_readable(&self, disk: &Rc<NativeDisk>, known: &ExpectedDisk) -> Result<(), String> {
        let unit = u64::from(self.plan.world.logical_block) / SECTOR;
        for first in (0..known.windows.sectors()).step_by(unit as usize) {
            let (offset, _) = known.windows.on_disk(first);
            let (_, result) = disk.clone().read(offset, Buf::alloc((unit * SECTOR) as usize)).await;
            let Err(e) = result else { continue };
            self.mark("a guest's sector was unreadable");
            if !(first..first + unit).any(|sector| known.model.is_in_doubt(sector)) {
                return Err(format!("{} sector {first} was flushed and cannot be read: {e}", disk.name));
            }
        }
        Ok(())
    }
}
