//! Check of extents: compares each descriptor with the files that it names.

use std::rc::Rc;

use blk::reactor::OpenMode;
use blk::{Buf, File, Result, SECTOR};

use super::finding::{Faults, Finding, REMEDY_CUT, Severity};
use super::inventory::{Delta, Inventory, Place};
use super::keyword_of;
use crate::cowd;
use crate::delta::{self, Growth, VmfsSparse};
use crate::descriptor::{Descriptor, Extent, ExtentKind};
use crate::hosted::{self, stream_optimized};
use crate::probe::{self, Content};
use crate::sesparse::{self, SeSparse};
use crate::steps;
use crate::text::shown;

const REMEDY_DELTA: &str =
    "take the file from a backup; or copy what can still be read of the disk into a new one";

pub(super) async fn check_link(inventory: &Inventory<'_>, name: &str, link: &Descriptor, out: &mut Faults) {
    check_create_type(inventory, name, link, out);
    check_change_tracking(inventory, name, link, out);
    if let Some(error) = probe::unreadable(link) {
        out.push(Finding::of_error(&error, "convert the disk"));
    }
    for extent in link.extents().iter().filter(|extent| !extent.file.is_empty()) {
        match inventory.locate(&extent.file) {
            Place::Here(file) => check_extent(inventory, name, extent, &file, out).await,
            place => out.push(absent(inventory, name, extent, &place)),
        }
    }
}

fn absent(inventory: &Inventory<'_>, name: &str, extent: &Extent, place: &Place) -> Finding {
    let (severity, expected, remedy) = match place {
        Place::Outside => {
            let remedy = "nothing to do if that folder stays; check it by itself";
            (Severity::Note, "a file of this folder: it is elsewhere, and was not checked", remedy)
        }
        Place::Missing | Place::Here(_) => {
            let remedy = "find the file in a backup; without it only the state below this link can be read";
            (Severity::Damage, "a file, which is not here", remedy)
        }
    };
    Finding::new(severity, inventory.path(name), "the extent line", shown(&extent.file))
        .expected(expected)
        .remedy(remedy)
}

/// Compares `createType` with the value that belongs to the extents, if there is one.
fn check_create_type(inventory: &Inventory<'_>, name: &str, link: &Descriptor, out: &mut Faults) {
    let own = link.create_type().to_ascii_lowercase();
    let sound = |extent: &Extent| match extent.kind {
        ExtentKind::VmfsSparse => own == "vmfssparse",
        ExtentKind::SeSparse => own == "sesparse" || own == "vmfssesparse",
        ExtentKind::Vmfs => own.starts_with("vmfs") && !own.ends_with("sparse"),
        ExtentKind::Sparse => own.ends_with("sparse") || own == "streamoptimized",
        _ => true,
    };
    let Some(odd) = link.extents().iter().find(|extent| !sound(extent)) else { return };
    out.push(
        Finding::new(Severity::Warning, inventory.path(name), "createType", shown(link.create_type()))
            .expected(format!("the type of its extent, {}", odd.kind.keyword()))
            .remedy("correct createType; the type of the extent is what is believed here"),
    );
}

/// Reports changed-block tracking, which only backups need.
fn check_change_tracking(inventory: &Inventory<'_>, name: &str, link: &Descriptor, out: &mut Faults) {
    let version = link.version();
    let (field, found, expected) = match link.change_track_path() {
        None if version == 3 => {
            ("changeTrackPath", "absent".into(), "the change-tracking file, as version is 3")
        }
        None => return,
        Some(path) if inventory.locate(path) == Place::Missing => {
            ("changeTrackPath", shown(path), "a file, which is not here")
        }
        Some(_) if version == 3 => return,
        Some(_) => ("version", version.to_string(), "3, as there is a changeTrackPath"),
    };
    let remedy = "set version=1 and take changeTrackPath out; only change tracking (CBT) is lost, the next backup is a full one";
    out.push(
        Finding::new(Severity::Warning, inventory.path(name), field, found).expected(expected).remedy(remedy),
    );
}

async fn check_extent(inventory: &Inventory<'_>, name: &str, extent: &Extent, file: &str, out: &mut Faults) {
    let content = match inventory.contents.get(file).copied().unwrap_or(Content::Other) {
        // No tool makes a flat disk of such a file, but a guest may write one into its disk.
        Content::HostedSparse | Content::StreamOptimized if extent.kind.is_flat() => Content::Other,
        content => content,
    };
    let assumed = match extent.kind {
        ExtentKind::SeSparse => Some(Content::SeSparse),
        ExtentKind::VmfsSparse => Some(Content::VmfsSparse),
        ExtentKind::Sparse => Some(Content::HostedSparse),
        _ => None,
    };
    if let Some(word) = keyword_of(content).filter(|word| *word != extent.kind.keyword()) {
        let found = extent.kind.keyword();
        out.push(
            Finding::new(Severity::Damage, inventory.path(name), "the type of the extent", found)
                .expected(format!("{word}, as {} is {}", shown(file), content.name()))
                .remedy(format!("write {word} into the extent line, and the createType that goes with it")),
        );
    }
    let described = Some((name, extent.sectors));
    match content {
        Content::VmfsSparse | Content::SeSparse | Content::HostedSparse => {
            check_delta(inventory, file, content, described, out).await;
        }
        _ => match assumed {
            // Its reader says what is wrong with it.
            Some(assumed) => check_delta(inventory, file, assumed, described, out).await,
            None if extent.kind.is_flat() => {
                if let Err(error) = check_flat(inventory, name, extent, file, out).await {
                    out.push(Finding::of_error(&error, REMEDY_DELTA));
                }
            }
            None => {}
        },
    }
}

/// Returns the length of a file, and remembers it.
async fn length(inventory: &Inventory<'_>, file: &str) -> Result<u64> {
    if let Some(known) = inventory.lengths.borrow().get(file) {
        return known.clone();
    }
    let length = match inventory.dir.open(file, OpenMode::Read).await {
        Ok(file) => file.size().await,
        Err(error) => Err(error),
    };
    inventory.lengths.borrow_mut().insert(file.into(), length.clone());
    length
}

async fn check_flat(
    inventory: &Inventory<'_>,
    name: &str,
    extent: &Extent,
    file: &str,
    out: &mut Faults,
) -> Result<()> {
    let size = length(inventory, file).await?;
    // Both are below 2^54 sectors, which the descriptor's parser ensures.
    let needed = (extent.offset_sectors + extent.sectors) * SECTOR;
    if size < needed {
        out.push(
            Finding::new(Severity::Damage, inventory.path(file), "the length", format!("{size} bytes"))
                .expected(format!("at least {needed}, as {} says: the file was cut", shown(name)))
                .remedy(REMEDY_CUT),
        );
    }
    Ok(())
}

async fn bytes_of(file: &File, len: usize) -> Result<Buf> {
    let size = file.size().await?;
    let (buf, result) = file.read(0, Buf::alloc(len.min(usize::try_from(size).unwrap_or(usize::MAX)))).await;
    result.map(|()| buf)
}

/// Returns the size of the disk from the header of the delta `name`.
pub(crate) async fn capacity_of(inventory: &Inventory<'_>, name: &str, content: Content) -> Result<u64> {
    if let Some(cut) = inventory.cut_of(name) {
        return Ok(cut.capacity_sectors);
    }
    let file = inventory.dir.open(name, OpenMode::Read).await?;
    delta_capacity(&file, content).await.map(|(capacity, ..)| capacity)
}

/// Returns the size of the disk from the file's own header, the name of that field, and the sectors to which it may be rounded.
async fn delta_capacity(file: &File, content: Content) -> Result<(u64, &'static str, u64)> {
    let size = file.size().await?;
    match content {
        Content::SeSparse => {
            let bytes = bytes_of(file, sesparse::HEADER_BYTES).await?;
            Ok((sesparse::Header::decode(file.name(), &bytes, size)?.capacity_sectors, "capacity", 1))
        }
        Content::HostedSparse => {
            let (header, _) = hosted::read_header(file).await?;
            Ok((header.capacity_sectors, "capacity", header.grain_sectors))
        }
        _ => {
            let bytes = bytes_of(file, cowd::HEADER_BYTES).await?;
            let header = cowd::Header::decode(file.name(), &bytes, size)?;
            Ok((u64::from(header.capacity_sectors()), "numSectors", 1))
        }
    }
}

/// Header, tables and cross-references, once for each file; and the size of the disk, where a descriptor (name, sectors) says
/// one.
async fn check_delta(
    inventory: &Inventory<'_>,
    name: &str,
    content: Content,
    described: Option<(&str, u64)>,
    out: &mut Faults,
) {
    let key = (name.to_owned(), content);
    let known = inventory.deltas.borrow().get(&key).cloned();
    let delta = match known {
        Some(delta) => delta,
        None => {
            let delta = Rc::new(examine(inventory, name, content, out).await);
            inventory.deltas.borrow_mut().insert(key, delta.clone());
            delta
        }
    };
    let Some((capacity_sectors, field)) = delta.capacity else { return };
    let fits =
        |sectors: u64| [sectors, sectors.next_multiple_of(delta.grain_sectors)].contains(&capacity_sectors);
    if let Some((descriptor, sectors)) = described.filter(|(_, sectors)| !fits(*sectors)) {
        out.push(
            Finding::new(Severity::Damage, inventory.path(name), field, capacity_sectors.to_string())
                .expected(format!("{sectors}, as the extent line of {} says", shown(descriptor)))
                .remedy(format!("put {capacity_sectors} into the extent line: a delta is never resized")),
        );
    }
}

async fn examine(inventory: &Inventory<'_>, name: &str, content: Content, out: &mut Faults) -> Delta {
    steps::count(1);
    if let Some(cut) = inventory.cut_of(name) {
        out.extend(cut.is_unclean.then(|| unclean(inventory, name)));
        return Delta { capacity: Some((cut.capacity_sectors, "numSectors")), grain_sectors: 1 };
    }
    let mut found = Delta { capacity: None, grain_sectors: 1 };
    let done = async {
        let file = inventory.dir.open(name, OpenMode::Read).await?;
        let (capacity_sectors, field, grain_sectors) = delta_capacity(&file, content).await?;
        found = Delta { capacity: Some((capacity_sectors, field)), grain_sectors };
        // The tables are checked for the size with which the delta was made, whatever its descriptor contains.
        cross_check(inventory, name, content, file, capacity_sectors, out).await
    };
    if let Err(error) = done.await {
        out.push(Finding::of_error(&error, REMEDY_DELTA));
    }
    found
}

async fn cross_check(
    inventory: &Inventory<'_>,
    name: &str,
    content: Content,
    file: File,
    capacity_sectors: u64,
    out: &mut Faults,
) -> Result<()> {
    let findings = if content == Content::HostedSparse {
        let (is_unclean, findings) = hosted::check_file(file).await?;
        out.extend(is_unclean.then(|| unclean_hosted(inventory, name)));
        findings
    } else if content == Content::SeSparse {
        let facts = sesparse::DeltaParams { name, capacity_sectors };
        SeSparse::open(file, facts).await?.cross_check().await?
    } else {
        let facts = delta::DeltaParams { name, capacity_sectors, writable: false, growth: Growth::default() };
        let delta = VmfsSparse::open(inventory.dir.env().clone(), file, facts).await?;
        if delta.is_unclean() {
            out.push(unclean(inventory, name));
        }
        delta.cross_check().await?
    };
    out.extend(findings);
    Ok(())
}

fn unclean(inventory: &Inventory<'_>, name: &str) -> Finding {
    let remedy =
        "nothing if its VM runs; else run the VM once, which verifies the tables and closes the delta";
    Finding::new(Severity::Warning, inventory.path(name), "uncleanShutdown", "set")
        .expected("0: the delta is open, or was not closed")
        .remedy(remedy)
}

/// Returns whether a sound hosted extent has no descriptor inside.
async fn is_split(inventory: &Inventory<'_>, name: &str) -> bool {
    let Ok(file) = inventory.dir.open(name, OpenMode::Read).await else { return false };
    let Ok((header, _)) = hosted::read_header(&file).await else { return false };
    let inside = probe::read_embedded(inventory.dir.env(), &file, name, &header).await;
    inside.is_ok_and(|link| link.is_none())
}

fn unclean_hosted(inventory: &Inventory<'_>, name: &str) -> Finding {
    Finding::new(Severity::Warning, inventory.path(name), "uncleanShutdown", "set")
        .expected("0: VMware has the disk open, or ended without closing it")
        .remedy("close the VM; if it runs nowhere, open it in VMware once, which verifies the tables")
}

/// Checks a file that no descriptor of the folder names.
pub(super) async fn check_alone(inventory: &Inventory<'_>, name: &str, out: &mut Faults) {
    let content = inventory.contents.get(name).copied().unwrap_or(Content::Other);
    match content {
        Content::VmfsSparse | Content::SeSparse => {
            check_delta(inventory, name, content, None, out).await;
        }
        // A damaged descriptor was reported when the folder was read.
        Content::Descriptor => {}
        Content::HostedSparse => {
            check_delta(inventory, name, content, None, out).await;
            if is_split(inventory, name).await {
                let expected = "one, with this file in an extent line: it is a part of a split disk";
                out.push(
                    Finding::new(Severity::Damage, inventory.path(name), "its descriptor", "missing")
                        .expected(expected)
                        .remedy(
                            "find it in a backup; all parts of the disk are named in it, with their sizes",
                        ),
                );
            }
        }
        Content::StreamOptimized => {
            out.push(Finding::of_error(&stream_optimized(&inventory.path(name)), "convert it"));
        }
        Content::Other => out.push(
            Finding::new(Severity::Note, inventory.path(name), "the content", content.name())
                .expected("anything: plain data has nothing to be checked by")
                .remedy("check the folder, which compares lengths with descriptors"),
        ),
    }
}
