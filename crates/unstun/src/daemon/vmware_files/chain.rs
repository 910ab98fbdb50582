//! A chain of VMware's files that is only read.

use std::rc::Rc;

use blk::layer::Layer;
use blk::manifest::Manifest;
use blk::{Dir, Result};
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home};

/// Opens the chain that ends in the descriptor `top`, read-only and base first.
pub(crate) async fn open_chain(dir: Dir, top: &str) -> Result<Vec<Rc<dyn Layer>>> {
    let home = Home::new(dir, Folders::default(), Growth::default());
    let manifest: &dyn Manifest = &home;
    let mut layers = Vec::new();
    for info in manifest.chain(top).await? {
        layers.push(manifest.open(&info.name, false).await?);
    }
    Ok(layers)
}
