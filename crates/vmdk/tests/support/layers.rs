//! What the engine does with a layer, in its simplest form. Offsets are those of the disk; `content` is what the disk shows from
//! `start` on.

use blk::layer::{Layer, Where};
use blk::{Buf, Result, SECTOR};
use sim::Rng;

/// A session's writes.
pub const WRITES_MAX: u64 = 20;

/// Random runs of sectors: single ones, pages, in their places or not, some across the edges of tables.
pub async fn write_randomly(rng: &mut Rng, layer: &dyn Layer, start: u64, content: &mut [u8], writes: u64) {
    let sectors = content.len() as u64 / SECTOR;
    for _ in 0..writes {
        let length = [1, 3, 8, 64, 700, 5000][rng.below(6) as usize].min(sectors);
        let mut at = rng.below(sectors - length + 1);
        if length % 8 == 0 && rng.coin() {
            at = at / 8 * 8;
        }
        let at = (at * SECTOR) as usize;
        let part = &mut content[at..at + (length * SECTOR) as usize];
        rng.fill(part);
        write(layer, start + at as u64, part).await;
    }
}

async fn write(layer: &dyn Layer, at: u64, data: &[u8]) {
    let part = |start: u64, end: u64| Buf::copy_of(&data[(start - at) as usize..(end - at) as usize]);
    for run in layer.lookup(at..at + data.len() as u64).await.unwrap() {
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
pub async fn seal(layer: &dyn Layer) {
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
pub async fn show(layer: &dyn Layer, start: u64, content: &mut [u8]) -> Result<()> {
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
