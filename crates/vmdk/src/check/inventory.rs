//! Content of a folder: its names, descriptors and configuration, and the kinds of its other disk files.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blk::dir::{OWN_FOLDER, TEMPORARY_SUFFIX};
use blk::reactor::OpenMode;
use blk::{Dir, ErrorKind, Result};

use super::finding::{Faults, Finding, Severity};
use crate::descriptor::Descriptor;
use crate::home::{RECORD, VM_ID, binned_layers, is_foreign_lock};
use crate::hosted::read_header;
use crate::probe::{self, Content};
use crate::read::{Parser, parse};
use crate::repair::Cut;
use crate::steps;
use crate::text::{FolderTexts, TEXT_BYTES_MAX, check_names};
use crate::vmsd::Vmsd;
use crate::vmx::Vmx;

const REMEDY_TEXT: &str = "correct the line in a copy of the file, or take the file from a backup";

/// Changes of a folder that are planned and not carried out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Planned {
    /// Future content of each text, by name.
    pub texts: BTreeMap<String, Vec<u8>>,
    /// For each new text: the file whose owner and permissions it gets.
    pub like: BTreeMap<String, String>,
    /// Names that will leave the folder; those of folders end with a slash.
    pub gone: BTreeSet<String>,
    /// Future changes of deltas, by name.
    pub cut: BTreeMap<String, Rc<Cut>>,
}

/// What a delta's own file says.
pub(crate) struct Delta {
    /// The size of the disk, and the name of that field; None where the header cannot be read.
    pub capacity: Option<(u64, &'static str)>,
    /// Sectors of a grain, to which a hosted extent's size may be rounded up; else 1.
    pub grain_sectors: u64,
}

pub(crate) struct Inventory<'a> {
    pub dir: &'a Dir,
    /// Names of files and folders; those of folders end with a slash.
    pub names: BTreeSet<String>,
    /// Readable descriptors.
    pub links: BTreeMap<String, Descriptor>,
    /// Links that the bin keeps.
    pub binned: BTreeSet<String>,
    /// Kinds of all other `.vmdk` files; a descriptor among them cannot be read.
    pub contents: BTreeMap<String, Content>,
    pub vmx: BTreeMap<String, Vmx>,
    pub vmsd: BTreeMap<String, Vmsd>,
    planned: &'a Planned,
    texts: FolderTexts,
    /// unstun has opened the configuration of the folder.
    is_ours: bool,
    /// Links that were made on each parent.
    children: BTreeMap<String, Vec<String>>,
    /// Descriptors that have an extent in each file.
    namers: BTreeMap<String, Vec<String>>,
    /// For each file name in a hint: the CID that the first such link expects there.
    hinted: BTreeMap<String, u32>,
    /// Results for deltas and hosted extents, each with the format as which it was read, and lengths of files. They are kept
    /// because every line of every descriptor may name the same file.
    pub deltas: RefCell<BTreeMap<(String, Content), Rc<Delta>>>,
    pub lengths: RefCell<BTreeMap<String, Result<u64>>>,
}

/// Target of a path that one of the files contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The name of a file of this folder.
    Here(String),
    /// A file that should be in this folder, and is not.
    Missing,
    /// A file in another folder, which is not examined.
    Outside,
}

impl<'a> Inventory<'a> {
    /// Reads the folder in the state after `planned` is carried out.
    pub(crate) async fn read(dir: &'a Dir, planned: &'a Planned, out: &mut Faults) -> Result<Self> {
        let names = dir.list().await?;
        check_names(dir.path(), names.len())?;
        let stays = names.into_iter().filter(|name| !planned.gone.contains(name));
        let mut inventory = Self {
            dir,
            names: stays.chain(planned.texts.keys().cloned()).collect(),
            links: BTreeMap::new(),
            binned: match binned_layers(dir).await {
                Err(e) if e.kind == ErrorKind::NoDescriptors => return Err(e),
                // A private folder that cannot be read is reported with the leftovers.
                binned => binned.unwrap_or_default(),
            },
            contents: BTreeMap::new(),
            vmx: BTreeMap::new(),
            vmsd: BTreeMap::new(),
            planned,
            texts: FolderTexts::default(),
            is_ours: false,
            children: BTreeMap::new(),
            namers: BTreeMap::new(),
            hinted: BTreeMap::new(),
            deltas: RefCell::default(),
            lengths: RefCell::default(),
        };
        for name in inventory.names.clone() {
            if let Err(error) = inventory.add(&name).await {
                out.push(Finding::of_error(&error, REMEDY_TEXT));
            }
        }
        inventory.drop_links_of_guests();
        inventory.is_ours = inventory.vmx.values().any(|vmx| vmx.values().has(VM_ID));
        inventory.relate().await;
        Ok(inventory)
    }

    /// Drops what looks like a descriptor inside of a file that another descriptor has as its extent: the guest of a flat disk
    /// could write one.
    fn drop_links_of_guests(&mut self) {
        let by_text = self.links.values().filter(|link| !link.is_embedded());
        let extents = by_text.flat_map(Descriptor::extents).map(|extent| &extent.file);
        let base = |file: &String| file.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        let named: BTreeSet<String> = extents.map(base).collect();
        self.links.retain(|name, link| !link.is_embedded() || !named.contains(name));
    }

    /// Records the parents and the names of all links once, so that no later query walks all links.
    async fn relate(&mut self) {
        let (mut children, mut namers) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<String>>::new());
        let mut hinted = BTreeMap::new();
        for (name, link) in &self.links {
            if let Some(parent) = self.parent_of(link) {
                children.entry(parent.to_owned()).or_default().push(name.clone());
            }
            let hint = link.parent_hint().and_then(|hint| hint.rsplit(['/', '\\']).next());
            if let (Some(hint), Some(cid)) = (hint, link.parent_cid()) {
                hinted.entry(hint.to_owned()).or_insert(cid);
            }
            for extent in link.extents().iter().filter(|extent| !extent.file.is_empty()) {
                let Place::Here(file) = self.locate(&extent.file) else { continue };
                let by: &mut Vec<String> = namers.entry(file).or_default();
                if by.last() != Some(name) {
                    by.push(name.clone());
                }
            }
            self.dir.env().next_turn().await;
        }
        (self.children, self.namers, self.hinted) = (children, namers, hinted);
    }

    async fn add(&mut self, name: &str) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        if lower.ends_with(".vmdk") {
            let content = match self.planned.texts.get(name) {
                Some(text) => Content::of(&text[..text.len().min(probe::HEAD_BYTES as usize)]),
                None => Content::of(&probe::head(&self.dir.open(name, OpenMode::Read).await?).await?),
            };
            self.contents.insert(name.into(), content);
            if content == Content::HostedSparse {
                let file = self.dir.open(name, OpenMode::Read).await?;
                // A header that cannot be read is reported with the extent.
                if let Ok((header, _)) = read_header(&file).await {
                    let link = probe::read_embedded(self.dir.env(), &file, name, &header).await?;
                    self.links.extend(link.map(|link| (name.into(), link)));
                }
            } else if content == Content::Descriptor {
                let link = self.parse(name, Descriptor::parse).await?;
                self.contents.remove(name);
                self.links.insert(name.into(), link);
            }
        } else if lower.ends_with(".vmx") {
            let vmx = self.parse(name, Vmx::parse).await?;
            self.vmx.insert(name.into(), vmx);
        } else if lower.ends_with(".vmsd") {
            let vmsd = self.parse(name, Vmsd::parse).await?;
            self.vmsd.insert(name.into(), vmsd);
        }
        Ok(())
    }

    async fn parse<T: Send + 'static>(&mut self, name: &str, parser: Parser<T>) -> Result<T> {
        let bytes = match self.planned.texts.get(name) {
            Some(text) => text.clone(),
            None => self.dir.read_file(name, TEXT_BYTES_MAX as u64).await?,
        };
        self.texts.add(&self.path(name), &bytes)?;
        parse(self.dir.env(), self.path(name), bytes, parser).await
    }

    /// Returns the planned change of a delta.
    pub(crate) fn cut_of(&self, name: &str) -> Option<&Rc<Cut>> {
        self.planned.cut.get(name)
    }

    /// Returns the planned content of a text.
    pub(crate) fn planned_text(&self, name: &str) -> Option<&[u8]> {
        self.planned.texts.get(name).map(Vec::as_slice)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path_of(name)
    }

    /// Resolves a path. Folders are moved, so it means the file of that name in this folder, whatever its directory
    /// part is (formats 1.4). Absolute paths in the files of unstun's VMs are exact: links of an imported VM often have
    /// the same names as their parents.
    pub(crate) fn locate(&self, written: &str) -> Place {
        self.place(written, self.is_ours)
    }

    fn place(&self, written: &str, exact: bool) -> Place {
        steps::count(1);
        let (folder, name) = match written.rfind(['/', '\\']) {
            Some(at) => (&written[..at], &written[at + 1..]),
            None => ("", written),
        };
        let here = folder.is_empty() || folder == "." || folder == self.dir.path().trim_end_matches('/');
        if self.names.contains(name) && (here || !exact || !folder.starts_with('/')) {
            return Place::Here(name.into());
        }
        if here { Place::Missing } else { Place::Outside }
    }

    /// Resolves the path of a link's parent.
    pub(crate) fn locate_parent(&self, link: &Descriptor) -> Option<Place> {
        Some(self.place(link.parent_hint()?, link.owner().is_some()))
    }

    /// Returns the parent's name if it is a readable link of this folder.
    pub(crate) fn parent_of(&self, link: &Descriptor) -> Option<&str> {
        let Place::Here(name) = self.locate_parent(link)? else { return None };
        self.links.get_key_value(&name).map(|(name, _)| name.as_str())
    }

    pub(crate) fn children_of(&self, parent: &str) -> &[String] {
        self.children.get(parent).map_or(&[], Vec::as_slice)
    }

    /// Returns the descriptors with an extent in `file`.
    pub(crate) fn who_names(&self, file: &str) -> &[String] {
        self.namers.get(file).map_or(&[], Vec::as_slice)
    }

    /// Returns the CID that a link made on a file called `name` expects there.
    pub(crate) fn expected_cid(&self, name: &str) -> Option<u32> {
        self.hinted.get(name).copied()
    }

    /// Reports locks of running programs, and leftovers of interrupted ones.
    pub(crate) async fn check_leftovers(&self, out: &mut Faults) {
        for name in &self.names {
            if let Some(finding) = self.leftover(name) {
                out.push(finding);
            }
        }
        if !self.names.contains(&format!("{OWN_FOLDER}/")) {
            return;
        }
        let record = async {
            let names = self.dir.open_dir(OWN_FOLDER, false).await?.list().await?;
            Ok::<bool, blk::Error>(names.iter().any(|name| name == RECORD))
        };
        match record.await {
            Ok(false) => {}
            Ok(true) => {
                let file = self.path(&format!("{OWN_FOLDER}/{RECORD}"));
                let remedy = "open the VM with unstun, which finishes the change; what is found before that may be half of it";
                out.push(
                    Finding::new(Severity::Warning, file, "the record of a change", "present")
                        .expected("none: a change of this folder was interrupted")
                        .remedy(remedy),
                );
            }
            Err(error) => out.push(Finding::of_error(&error, "see that the folder can be read")),
        }
    }

    fn leftover(&self, name: &str) -> Option<Finding> {
        let lower = name.to_ascii_lowercase();
        let (severity, field, expected, remedy) = if is_foreign_lock(name) {
            let remedy = "power the VM off where it runs; if it runs nowhere, remove the lock";
            (
                Severity::Warning,
                "the lock",
                "none: a program has the VM open, or ended without closing it",
                remedy,
            )
        } else if lower.contains(".redo_") {
            let remedy = "it is removed at the next power-on; copy it first if its writes are wanted";
            (Severity::Note, "the redo log", "none: it holds the writes of a nonpersistent disk", remedy)
        } else if lower.ends_with(".vmss") {
            let remedy = "resume and shut down on VMware first, or lose the state of its memory";
            (
                Severity::Note,
                "the suspended state",
                "none: it fits its disks only while they are not written",
                remedy,
            )
        } else if lower.ends_with(TEMPORARY_SUFFIX) {
            let remedy = "open the VM with unstun, which removes it";
            (Severity::Note, "the temporary file", "none: a change was interrupted before it began", remedy)
        } else {
            return None;
        };
        Some(
            Finding::new(severity, self.path(name.trim_end_matches('/')), field, "present")
                .expected(expected)
                .remedy(remedy),
        )
    }
}
