//! Links of a home: reading of descriptors, walks along chains, and parents and children.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::dir::TEMPORARY_SUFFIX;
use blk::manifest::{CHAIN_LAYERS_MAX, LayerInfo, LayerName};
use blk::reactor::OpenMode;
use blk::{Error, ErrorKind, Result, SECTOR};

use super::cache::CachedFile;
use super::folders::{Folder, FolderSet, LayerFile, Role};
use super::paths::{join, normal, split};
use super::survey::{Located, Survey};
use crate::descriptor::Descriptor;
use crate::probe::{self, Probed};
use crate::text::{FolderTexts, shown, wrong};

/// Endings of names that do not belong to disks.
const NO_DATA: [&str; 5] = ["vmx", "vmsd", "vmsn", "vmem", "nvram"];

/// Reads the descriptor of `layer`.
pub(super) async fn read(folders: &FolderSet, layer: &str) -> Result<Rc<Descriptor>> {
    if let Some(CachedFile::Link(link)) = folders.cache.get(&folders.path_of(layer)) {
        return Ok(link);
    }
    read_in(folders, &folders.place(layer).await?).await
}

/// Reads like `read`, for a layer whose place is known.
pub(super) async fn read_in(folders: &FolderSet, place: &LayerFile) -> Result<Rc<Descriptor>> {
    let path = join(&place.folder.path, &place.name);
    if let Some(CachedFile::Link(link)) = folders.cache.get(&path) {
        return Ok(link);
    }
    let age = folders.cache.age();
    let link = Rc::new(probe::read_descriptor(&place.folder.dir, &place.name).await?);
    keep(folders, path, age, CachedFile::Link(link.clone()));
    Ok(link)
}

/// Caches a file that no other program writes: see `Cache`.
fn keep(folders: &FolderSet, path: String, age: u64, known: CachedFile) {
    let at_home = folders.is_at_home(&path);
    let ours = match &known {
        CachedFile::Link(link) if link.owner().is_some() => link.owner() == folders.id.get(),
        CachedFile::Link(_) => at_home,
        CachedFile::NoLink => at_home || folders.cache.is_extent(&path),
    };
    if ours && folders.role_of(&path) == Some(Role::Own) {
        folders.cache.keep(path, age, known);
    }
}

/// Reads the descriptor `name` in `folder`; None if the file is not a descriptor.
async fn find_in(folders: &FolderSet, folder: &Folder, name: &str) -> Result<Option<Rc<Descriptor>>> {
    let path = join(&folder.path, name);
    match folders.cache.get(&path) {
        Some(CachedFile::Link(link)) => return Ok(Some(link)),
        Some(CachedFile::NoLink) => return Ok(None),
        None => {}
    }
    let age = folders.cache.age();
    let known = match probe::find_descriptor(&folder.dir, name).await? {
        Probed::Link(link) => CachedFile::Link(Rc::new(link)),
        Probed::Other => CachedFile::NoLink,
        Probed::Empty => return Ok(None),
    };
    keep(folders, path, age, known.clone());
    Ok(match known {
        CachedFile::Link(link) => Some(link),
        CachedFile::NoLink => None,
    })
}

/// The descriptor called `name`, if it is one that can be read. What is damaged is passed over here, and reported when it is used.
pub(super) async fn readable(
    folders: &FolderSet,
    folder: &Folder,
    name: &str,
) -> Result<Option<Rc<Descriptor>>> {
    if !name.to_ascii_lowercase().ends_with(".vmdk") || name.ends_with(TEMPORARY_SUFFIX) {
        return Ok(None);
    }
    match find_in(folders, folder, name).await {
        // Not found: a child that could not be made is being taken away.
        Err(e) if matches!(e.kind, ErrorKind::Damaged | ErrorKind::Unsupported | ErrorKind::NotFound) => {
            Ok(None)
        }
        found => found,
    }
}

/// Reads every readable descriptor of a folder, with its name.
///
/// # Errors
/// `Damaged` if their total size exceeds that of a VM's folder.
pub(super) async fn read_folder(
    folders: &FolderSet,
    folder: &Folder,
    names: &BTreeSet<String>,
) -> Result<Vec<(String, Rc<Descriptor>)>> {
    let (mut found, mut texts) = (Vec::new(), FolderTexts::default());
    for name in names {
        let Some(link) = readable(folders, folder, name).await? else { continue };
        let (bytes, lines) = link.text_size();
        texts.add_size(link.file(), bytes, lines)?;
        found.push((name.clone(), link));
    }
    Ok(found)
}

/// One link of an own folder.
pub(super) struct OwnLink {
    pub layer: LayerName,
    pub link: Rc<Descriptor>,
    /// The link is in the home itself, which no other VM uses.
    pub at_home: bool,
}

/// Reads every readable descriptor in the home and in the other folders in which it may write.
pub(super) async fn read_own(survey: &Survey<'_>) -> Result<Vec<OwnLink>> {
    let mut found = Vec::new();
    for (index, folder) in survey.folders.own().enumerate() {
        let names = survey.own_names(&folder.path).await?;
        for (name, link) in read_folder(survey.folders, folder, &names).await? {
            let layer = survey.folders.layer_name(&join(&folder.path, &name));
            found.push(OwnLink { layer, link, at_home: index == 0 });
        }
    }
    Ok(found)
}

/// Returns the link below `child`; None for a base. If several files match the hint, it is the one with the content on
/// which the child was made.
pub(super) async fn parent_of(survey: &Survey<'_>, child: &Descriptor) -> Result<Option<Located>> {
    let Some(hint) = child.parent_hint() else { return Ok(None) };
    let mut found = survey.locate_all(child.file(), hint).await?;
    if found.len() > 1 {
        for located in &found {
            let candidate = read(survey.folders, &located.layer).await;
            if candidate.is_ok_and(|link| Some(link.cid()) == child.parent_cid()) {
                return Ok(Some(located.clone()));
            }
        }
    }
    Ok(Some(found.swap_remove(0)))
}

/// Returns the parent of a link that need not be sound: also None if the hint leads to a file that cannot be found.
pub(super) async fn known_parent_of(survey: &Survey<'_>, child: &Descriptor) -> Result<Option<LayerName>> {
    match parent_of(survey, child).await {
        Ok(parent) => Ok(parent.map(|located| located.layer)),
        Err(e) if matches!(e.kind, ErrorKind::Refused | ErrorKind::Damaged) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Returns the chain that ends in `top`, base first. Verifies that every link is the child of the next one by size and,
/// unless disabled, by content ID.
pub(super) async fn chain(
    survey: &Survey<'_>,
    top: &str,
    ignore_content_ids: bool,
) -> Result<Vec<(LayerName, Rc<Descriptor>)>> {
    let place = || survey.folders.path_of(top);
    let mut links: Vec<(LayerName, Rc<Descriptor>)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut at = top.to_owned();
    loop {
        if !seen.insert(at.clone()) {
            let cause = format!("{} is its own ancestor: the parent hints go in a circle", shown(&at));
            return Err(Error::damaged(place(), cause));
        }
        if links.len() == CHAIN_LAYERS_MAX {
            let cause = format!("the chain has more than {CHAIN_LAYERS_MAX} links");
            return Err(Error::refused(place(), format!("{cause}; convert it into a new disk")));
        }
        let child = links.last().map(|(_, link)| &**link);
        let link = read(survey.folders, &at).await.map_err(|e| missing_parent(e, child))?;
        if let Some(child) = child {
            check_pair(child, &link, ignore_content_ids)?;
        }
        let parent = parent_of(survey, &link).await?;
        links.push((at, link));
        let Some(parent) = parent else { break };
        at = parent.layer;
    }
    links.reverse();
    Ok(links)
}

fn missing_parent(error: Error, child: Option<&Descriptor>) -> Error {
    let Some(child) = child.filter(|_| error.kind == ErrorKind::NotFound) else { return error };
    let hint = shown(child.parent_hint().unwrap_or_default());
    Error::not_found(child.file(), format!("its parentFileNameHint {hint} cannot be opened ({error})"))
}

fn check_pair(child: &Descriptor, parent: &Descriptor, ignore_content_ids: bool) -> Result<()> {
    let wanted = child.parent_cid().unwrap_or_default();
    if wanted != parent.cid() && !ignore_content_ids {
        let cause =
            format!("parentCID is {wanted:08x}, but the CID of {} is {:08x}", parent.file(), parent.cid());
        let remedy = match away_from_hint(child, parent) {
            Some(hint) => format!(
                "that file was found by its name alone, and is likely another: the parent is {}, which cannot be opened \
                 here; bring it within reach, or copy the disk from its export",
                shown(hint)
            ),
            None => "the parent was written after this child was made, so what the child does not hold may be wrong; \
                     only if the parent's data is known to be unchanged, set parentCID to that value"
                .into(),
        };
        return Err(Error::damaged(child.file(), format!("{cause}; {remedy}")));
    }
    let (own, below) = (child.capacity_sectors(), parent.capacity_sectors());
    if own != below {
        let cause = format!("the disk has {own} sectors, but {below} in its parent {}", parent.file());
        return Err(Error::damaged(child.file(), format!("{cause}, expected the same along the chain")));
    }
    Ok(())
}

/// Returns the hint of one of unstun's children if its parent was found elsewhere. Absolute hints of unstun are exact,
/// and the links of imports and clones often have the same names as their parents.
fn away_from_hint<'a>(child: &'a Descriptor, parent: &Descriptor) -> Option<&'a str> {
    let hint = child.parent_hint().filter(|hint| hint.starts_with('/') && child.owner().is_some())?;
    (normal(hint) != normal(parent.file())).then_some(hint)
}

/// Returns the facts of a descriptor, with the space of its files.
pub(super) async fn info(
    survey: &Survey<'_>,
    name: &str,
    link: &Descriptor,
    parent: Option<LayerName>,
) -> Result<LayerInfo> {
    let mut allocated_bytes = 0u64;
    for place in extent_places(survey, link).await?.values() {
        let file = place.folder.dir.open(&place.name, OpenMode::Read).await?;
        allocated_bytes = allocated_bytes.saturating_add(file.allocated_bytes().await?);
    }
    Ok(LayerInfo {
        name: name.into(),
        parent,
        size_bytes: link.capacity_sectors() * SECTOR,
        format: link.create_type().into(),
        allocated_bytes,
        foreign: survey.folders.place(name).await?.is_foreign(),
        read_only: link.is_read_only(survey.folders.write_sesparse.get()),
    })
}

/// Returns the folder of a descriptor.
pub(super) async fn folder_of(folders: &FolderSet, link: &Descriptor) -> Result<Folder> {
    let path = normal(link.file()).unwrap_or_default();
    folders.folder(split(&path).0).await
}

/// The files of a link by their names as written, each once.
pub(super) async fn extent_places(
    survey: &Survey<'_>,
    link: &Descriptor,
) -> Result<BTreeMap<String, LayerFile>> {
    let folder = folder_of(survey.folders, link).await?;
    let mut places = BTreeMap::new();
    for extent in link.extents().iter().filter(|extent| !extent.file.is_empty()) {
        if places.contains_key(&extent.file) {
            continue;
        }
        let suffix = extent.file.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        if NO_DATA.contains(&suffix.as_str()) {
            let expected =
                "a file of data: one of this name belongs to the VM, and would be written and removed";
            return Err(wrong(link.file(), "the file of an extent", shown(&extent.file), expected));
        }
        let place = if extent.file.contains(['/', '\\']) {
            let located = survey.locate(link.file(), &extent.file).await?;
            survey.folders.place(&located.layer).await?
        } else {
            let path = join(&folder.path, &extent.file);
            let layer = survey.folders.layer_name(&path);
            LayerFile { folder: folder.clone(), name: extent.file.clone(), layer }
        };
        places.insert(extent.file.clone(), place);
    }
    Ok(places)
}
