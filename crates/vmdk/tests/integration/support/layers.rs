//! The engine's use of a layer in its simplest form. Offsets are those of the disk; `content` is the disk's content
//! from `start` on.

use std::ops::Range;

use blk::layer::{Layer, Where};
use blk::{Buf, Result, SECTOR};
use sim::Rng;

/// Maximum number of writes of a session.
pub(crate) const WRITES_MAX: u64 = 20;

/// Random runs of sectors: single ones, pages, in their places or not, some across the edges of tables.
pub(crate) async fn write_randomly(
    rng: &mut Rng,
    layer: &dyn Layer,
    start: u64,
    content: &mut [u8],
    writes: u64,
) {
    let sectors = content.len() as u64 / SECTOR;
    for _ in 0..writes {
        let length = [1, 3, 8, 64, 700, 5000][rng.below(6) as usize].min(sectors);
        let mut at = rng.below(sectors - length + 1);
        if length % 8 == 0 && rng.coin() {
            at = at / 8 * 8;
        }
        let range = at * SECTOR..(at + length) * SECTOR;
        rng.fill(&mut content[range.start as usize..range.end as usize]);
        write(layer, start, content, start + range.start..start + range.end).await;
    }
}

/// Writes `range` of `content`, which the disk shows from `start` on; of a new grain all that the disk shows there.
async fn write(layer: &dyn Layer, start: u64, content: &[u8], range: Range<u64>) {
    let part = |from: u64, to: u64| Buf::copy_of(&content[(from - start) as usize..(to - start) as usize]);
    for run in layer.lookup(range).await.unwrap() {
        if let Where::Data { file, offset } = run.place {
            layer.files()[usize::from(file)].write(offset, part(run.start, run.end())).await.unwrap();
            continue;
        }
        let placement = layer.place(run.start..run.end()).await.unwrap();
        for placed in &placement.runs {
            let Where::Data { file, offset } = placed.place else { panic!("{placed:?}") };
            layer.files()[usize::from(file)].write(offset, part(placed.start, placed.end())).await.unwrap();
        }
        layer.publish(&placement);
    }
}

/// Everything durable, in the order of the contract, and the layer closed.
pub(crate) async fn seal(layer: &dyn Layer) {
    let stages = layer.stages();
    for batch in [stages.early].iter().chain(&stages.late) {
        for write in batch {
            layer.files()[usize::from(write.file)].write(write.offset, write.data.clone()).await.unwrap();
        }
        for file in layer.files() {
            file.flush().await.unwrap();
        }
    }
    layer.settle(stages.ticket);
    layer.seal().await.unwrap();
}

/// Lays what the layer holds over `content`.
pub(crate) async fn show(layer: &dyn Layer, start: u64, content: &mut [u8]) -> Result<()> {
    for run in layer.lookup(start..start + content.len() as u64).await? {
        let part = &mut content[(run.start - start) as usize..(run.end() - start) as usize];
        match run.place {
            Where::Parent => {}
            Where::Zero => part.fill(0),
            Where::Data { file, offset } => {
                let (buf, result) =
                    layer.files()[usize::from(file)].read(offset, Buf::alloc(part.len())).await;
                result?;
                part.copy_from_slice(&buf);
            }
        }
    }
    Ok(())
}
