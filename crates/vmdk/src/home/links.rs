//! Descriptors of a home: reading them, walking chains, and who is whose child.

use std::collections::BTreeSet;

use blk::dir::TEMPORARY_SUFFIX;
use blk::manifest::{CHAIN_LAYERS_MAX, LayerInfo};
use blk::reactor::OpenMode;
use blk::{Buf, Dir, Error, ErrorKind, Result, SECTOR};

use crate::descriptor::Descriptor;
use crate::probe;
use crate::text::{TEXT_BYTES_MAX, shown, wrong};

/// Enough of a file to tell a descriptor from an extent.
const PROBE_BYTES: u64 = 1024;

/// Reads the descriptor `name`.
pub(super) async fn read(dir: &Dir, name: &str) -> Result<Descriptor> {
    probe::read_descriptor(dir, name).await
}

/// Every readable descriptor among `names`, with its name. What is damaged is passed over here, and reported when it is used.
pub(super) async fn read_all(dir: &Dir, names: &[String]) -> Result<Vec<(String, Descriptor)>> {
    let mut found = Vec::new();
    for name in names {
        let candidate = name.to_ascii_lowercase().ends_with(".vmdk") && !name.ends_with(TEMPORARY_SUFFIX);
        if !candidate {
            continue;
        }
        let read = async {
            match looks_like_descriptor(dir, name).await? {
                true => read(dir, name).await.map(Some),
                false => Ok(None),
            }
        };
        match read.await {
            Ok(descriptor) => found.extend(descriptor.map(|d| (name.clone(), d))),
            // Not found: a child that could not be made is being taken away.
            Err(e) if matches!(e.kind, ErrorKind::Damaged | ErrorKind::Unsupported | ErrorKind::NotFound) => {
            }
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

async fn looks_like_descriptor(dir: &Dir, name: &str) -> Result<bool> {
    let file = dir.open(name, OpenMode::Read).await?;
    let size = file.size().await?;
    if size == 0 || size > TEXT_BYTES_MAX as u64 {
        return Ok(false);
    }
    if size < PROBE_BYTES {
        return Ok(Descriptor::probe(&file.read_all(PROBE_BYTES).await?));
    }
    let (buf, result) = file.read(0, Buf::alloc(PROBE_BYTES as usize)).await;
    result?;
    Ok(Descriptor::probe(&buf))
}

/// The name in the home that a path written in one of its files means: the plain name itself, or the last component of a
/// path when a file of that name is here, since folders get moved. Paths are untrusted, and nothing outside the home is opened.
pub(super) fn local_name(place: &str, path: &str, is_here: impl Fn(&str) -> bool) -> Result<String> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    if name.is_empty() || name == "." || name == ".." {
        return Err(wrong(place, "a path in it", shown(path), "the name of a file"));
    }
    if name == path || is_here(name) {
        return Ok(name.into());
    }
    let cause =
        format!("it names {}, which is not in this folder, and nothing outside it is opened", shown(path));
    Err(Error::not_found(place, format!("{cause}; copy that file here first")))
}

/// The chain that ends in `top`, base first. Verifies that every link is the child of the next by content id and size.
pub(super) async fn chain(dir: &Dir, top: &str, names: &BTreeSet<String>) -> Result<Vec<Descriptor>> {
    let mut links: Vec<Descriptor> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut at = top.to_owned();
    loop {
        if !seen.insert(at.clone()) {
            let cause = format!("{} is its own ancestor: the parent hints go in a circle", shown(&at));
            return Err(Error::damaged(dir.path_of(top), cause));
        }
        if links.len() == CHAIN_LAYERS_MAX {
            let cause = format!("the chain has more than {CHAIN_LAYERS_MAX} links");
            return Err(Error::refused(dir.path_of(top), format!("{cause}; convert it into a new disk")));
        }
        let link = read(dir, &at).await.map_err(|e| missing_parent(e, links.last()))?;
        if let Some(child) = links.last() {
            check_pair(child, &link)?;
        }
        let hint = link.parent_hint().map(str::to_owned);
        let file = link.file().to_owned();
        links.push(link);
        let Some(hint) = hint else { break };
        at = local_name(&file, &hint, |name| names.contains(name))?;
    }
    links.reverse();
    Ok(links)
}

fn missing_parent(error: Error, child: Option<&Descriptor>) -> Error {
    let Some(child) = child.filter(|_| error.kind == ErrorKind::NotFound) else { return error };
    let hint = shown(child.parent_hint().unwrap_or_default());
    Error::not_found(child.file(), format!("its parentFileNameHint {hint} cannot be opened ({error})"))
}

fn check_pair(child: &Descriptor, parent: &Descriptor) -> Result<()> {
    let expected_cid = child.parent_cid().unwrap_or_default();
    if parent.cid() != expected_cid {
        let cause = format!(
            "parentCID is {expected_cid:08x}, but the CID of {} is {:08x}",
            parent.file(),
            parent.cid()
        );
        let remedy = "the parent was written after this child was made, so what the child does not hold may be wrong; \
             only if the parent's data is known to be unchanged, set parentCID to that value";
        return Err(Error::damaged(child.file(), format!("{cause}; {remedy}")));
    }
    let (own, below) = (child.capacity_sectors(), parent.capacity_sectors());
    if own != below {
        let cause = format!("the disk has {own} sectors, but {below} in its parent {}", parent.file());
        return Err(Error::damaged(child.file(), format!("{cause}, expected the same along the chain")));
    }
    Ok(())
}

/// What a descriptor says, with the space its files take.
pub(super) async fn info(
    dir: &Dir,
    name: &str,
    link: &Descriptor,
    parent: Option<String>,
) -> Result<LayerInfo> {
    let mut allocated_bytes = 0;
    for extent in extent_names(dir, link)? {
        let file = dir.open(&extent, OpenMode::Read).await?;
        let extents = file.extents(0, file.size().await?).await?;
        allocated_bytes += extents.iter().map(|extent| extent.len).sum::<u64>();
    }
    Ok(LayerInfo {
        name: name.into(),
        parent,
        size_bytes: link.capacity_sectors() * SECTOR,
        format: link.create_type().into(),
        allocated_bytes,
        foreign: false,
    })
}

/// The files of a link, each once. They must be in the home.
pub(super) fn extent_names(dir: &Dir, link: &Descriptor) -> Result<BTreeSet<String>> {
    let names = link.extents().iter().filter(|extent| !extent.file.is_empty());
    names
        .map(|extent| {
            if extent.file.contains(['/', '\\']) {
                let cause =
                    format!("the extent \"{extent}\" is outside {}, and nothing there is opened", dir.path());
                return Err(Error::refused(link.file(), cause));
            }
            Ok(extent.file.clone())
        })
        .collect()
}
