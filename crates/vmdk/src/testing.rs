//! The engine's use of a layer in its simplest form, for the tests of this crate.

use std::ops::Range;

use blk::layer::{Layer, Placement, Where};
use blk::{Buf, Dir, Env, Result, SECTOR};

/// Byte that `read` returns where the layer answers `Parent`.
pub(crate) const PARENT: u8 = 0xEE;

pub(crate) fn root(env: &Env) -> Dir {
    env.open_root("/").expect("the simulated root")
}

/// Writes data: a first write if the layer does not contain the range, otherwise an overwrite.
pub(crate) async fn write(layer: &dyn Layer, at: u64, data: &[u8]) -> Result<()> {
    for run in layer.lookup(at..at + data.len() as u64).await? {
        let part = &data[(run.start - at) as usize..(run.end() - at) as usize];
        match run.place {
            Where::Data { file, offset } => {
                layer.files()[usize::from(file)].write(offset, Buf::copy_of(part)).await?;
            }
            Where::Parent | Where::Zero => {
                let placement = layer.place(run.start..run.end()).await?;
                fill(layer, &placement, run.start, part).await?;
                layer.publish(&placement);
            }
        }
    }
    Ok(())
}

/// Writes `data` at `start` of the placement, and `PARENT` around it.
async fn fill(layer: &dyn Layer, placement: &Placement, start: u64, data: &[u8]) -> Result<()> {
    for run in &placement.runs {
        let Where::Data { file, offset } = run.place else { panic!("a placement is data, not {run:?}") };
        let mut whole = Buf::alloc(run.len as usize);
        whole.fill(PARENT);
        let at = (start - run.start) as usize;
        whole[at..at + data.len()].copy_from_slice(data);
        layer.files()[usize::from(file)].write(offset, whole).await?;
    }
    Ok(())
}

pub(crate) async fn read(layer: &dyn Layer, range: Range<u64>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for run in layer.lookup(range.clone()).await? {
        assert_eq!(run.start, range.start + out.len() as u64, "runs follow each other");
        match run.place {
            Where::Parent => out.resize(out.len() + run.len as usize, PARENT),
            Where::Zero => out.resize(out.len() + run.len as usize, 0),
            Where::Data { file, offset } => {
                let buf = Buf::alloc(run.len as usize);
                let (buf, result) = layer.files()[usize::from(file)].read(offset, buf).await;
                result?;
                out.extend_from_slice(&buf);
            }
        }
    }
    assert_eq!(out.len() as u64, range.end - range.start, "runs cover the range");
    Ok(out)
}

/// Flushes a layer in the order of the contract.
pub(crate) async fn flush(layer: &dyn Layer) -> Result<()> {
    let stages = layer.stages();
    for write in &stages.early {
        layer.files()[usize::from(write.file)].tables().write(write.offset, write.data.clone()).await?;
    }
    flush_files(layer).await?;
    for batch in stages.late.iter().filter(|batch| !batch.is_empty()) {
        for write in batch {
            layer.files()[usize::from(write.file)].tables().write(write.offset, write.data.clone()).await?;
        }
        flush_files(layer).await?;
    }
    layer.settle(stages.ticket);
    Ok(())
}

async fn flush_files(layer: &dyn Layer) -> Result<()> {
    for file in layer.files() {
        file.flush().await?;
    }
    Ok(())
}

pub(crate) fn sectors(count: u64) -> u64 {
    count * SECTOR
}
