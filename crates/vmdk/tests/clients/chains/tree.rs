//! Links of one disk in a tree, and the expected content of the disk through each.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use blk::manifest::{DeltaFormat, Manifest};
use blk::{Env, Result, SECTOR};
use sim::Rng;
use vmdk::home::{Folders, Home};

use super::base::{self, Base};
use super::write_at;
use crate::sesparse::{GRAIN, Image};
use crate::support::layers::{WRITES_MAX, seal, show, write_randomly};
use crate::support::{GROWTH, convert, qemu_img, scratch};

const DEPTH_MAX: usize = 8;
const FOLDERS: [&str; 3] = ["web", "linked clone", "fast"];

/// Largest disk: 8 MiB, four tables of a VMFSsparse delta.
const SECTORS_MAX: u64 = 16384;
const TABLE_COVERS_SECTORS: u64 = 4096;

/// Fields of a VMFSsparse header (reference/vmware-formats 3.1).
const DIRECTORY_SECTOR: usize = 20;
const DIRECTORY_ENTRIES: usize = 24;
/// Mark of unstun in the journal's header; the first free grain follows.
const SESPARSE_UNCLEAN: u64 = 2 * SECTOR + 32;
const FREE_SECTOR: usize = 28;
const UNCLEAN: usize = 1648;
/// Of an SEsparse header (4.1): the sector of the grain tables.
const TABLES: usize = 144;

pub(super) struct Node {
    folder: usize,
    name: String,
    /// Its file of data, in the same folder; for a base with several, the first.
    pub extent: String,
    parent: Option<usize>,
    /// Number of links below it.
    depth: usize,
    content: Vec<u8>,
}

pub(super) struct Tree {
    env: Env,
    pub rng: Rng,
    root: PathBuf,
    sectors: u64,
    /// Sectors at the end of the base that QEMU does not show.
    unseen: u64,
    /// All links, the base first.
    pub nodes: Vec<Node>,
    _guard: tempfile::TempDir,
}

impl Tree {
    pub(super) fn new(env: Env, seed: u64, kind: Base) -> Self {
        let (guard, root) = scratch();
        FOLDERS.iter().for_each(|folder| std::fs::create_dir(root.join(folder)).unwrap());
        let mut rng = Rng::new(seed);
        let sectors = match rng.below(4) {
            0 => rng.between(1, 64),
            1 => rng.between(1, SECTORS_MAX / TABLE_COVERS_SECTORS) * TABLE_COVERS_SECTORS,
            _ => rng.between(1, SECTORS_MAX),
        };
        let base::Made { content, extent, unseen } =
            base::make(&mut rng, &root.join(FOLDERS[0]), sectors, kind);
        let base = Node { folder: 0, name: "web.vmdk".into(), extent, parent: None, depth: 0, content };
        Self { env, rng, root, sectors, unseen, nodes: vec![base], _guard: guard }
    }

    pub(super) fn base_is_writable(&self) -> bool {
        self.unseen == 0
    }

    fn folder(&self, folder: usize) -> PathBuf {
        self.root.join(FOLDERS[folder])
    }

    fn path(&self, node: usize) -> PathBuf {
        self.folder(self.nodes[node].folder).join(&self.nodes[node].name)
    }

    pub(super) fn extent_path(&self, node: usize) -> PathBuf {
        self.folder(self.nodes[node].folder).join(&self.nodes[node].extent)
    }

    /// Opens a home that writes in one folder and reads in the others, as a linked clone does.
    fn home(&self, folder: usize) -> Home {
        let dir = |at: usize| self.env.open_root(self.folder(at).to_str().unwrap()).unwrap();
        let foreign = (0..FOLDERS.len()).filter(|at| *at != folder).map(dir).collect();
        let home = Home::new(dir(folder), Folders { foreign, ..Folders::default() }, GROWTH);
        // These homes have no VM, by whose ID a delta of unstun is known.
        home.set_write_sesparse(true);
        home
    }

    /// Runs a session of writes on a link without children.
    pub(super) async fn write_again(&mut self, node: usize) {
        let home = self.home(self.nodes[node].folder);
        let home: &dyn Manifest = &home;
        let node = &mut self.nodes[node];
        let layer = home.open(&node.name, true).await.unwrap();
        home.touch(&node.name).await.unwrap();
        let writes = self.rng.below(WRITES_MAX);
        write_randomly(&mut self.rng, &*layer, 0, &mut node.content, writes).await;
        seal(&*layer).await;
    }

    /// Adds a link, most often on the last one and beside it.
    pub(super) async fn grow(&mut self) {
        let parents: Vec<usize> =
            (0..self.nodes.len()).filter(|at| self.nodes[*at].depth < DEPTH_MAX).collect();
        let branches = self.rng.below(4) == 0;
        let parent = if branches { self.rng.pick(&parents) } else { parents.last() };
        let parent = *parent.expect("the base has no depth");
        let moves = self.rng.below(3) == 0;
        let folder =
            if moves { self.rng.below(FOLDERS.len() as u64) as usize } else { self.nodes[parent].folder };
        if self.rng.below(4) == 0 {
            self.add_sesparse(parent, folder);
            return;
        }
        let writes = self.rng.below(WRITES_MAX);
        let format = if self.rng.below(3) == 0 { DeltaFormat::SeSparse } else { DeltaFormat::Fitting };
        let node = self.add_delta(parent, folder, writes, format).await;
        if self.rng.below(3) == 0 {
            self.leave_unclean(node);
        }
        if self.rng.below(3) == 0 {
            self.write_again(node).await;
        }
    }

    fn push(&mut self, parent: usize, folder: usize, names: (String, String), content: Vec<u8>) -> usize {
        let (name, extent) = names;
        let depth = self.nodes[parent].depth + 1;
        self.nodes.push(Node { folder, name, extent, parent: Some(parent), depth, content });
        self.nodes.len() - 1
    }

    pub(super) async fn add_delta(
        &mut self,
        parent: usize,
        folder: usize,
        writes: u64,
        format: DeltaFormat,
    ) -> usize {
        let mut content = self.nodes[parent].content.clone();
        let home = self.home(folder);
        home.set_grain(1 << self.rng.below(12));
        let home: &dyn Manifest = &home;
        let below = &self.nodes[parent];
        let written = if below.folder == folder { below.name.clone() } else { text(&self.path(parent)) };
        let layer = home.create_child_in(&written, format).await.unwrap();
        write_randomly(&mut self.rng, &*layer, 0, &mut content, writes).await;
        seal(&*layer).await;
        let name = layer.name().to_owned();
        let end = if format == DeltaFormat::SeSparse { "-sesparse.vmdk" } else { "-delta.vmdk" };
        let extent = name.replace(".vmdk", end);
        let node = self.push(parent, folder, (name, extent), content);
        self.rewrite_hint(node, parent);
        node
    }

    /// Adds an SEsparse link, which only tests write.
    pub(super) fn add_sesparse(&mut self, parent: usize, folder: usize) -> usize {
        let mut content = self.nodes[parent].content.clone();
        let image = random_image(&mut self.rng, &mut content);
        // Above all numbers that deltas of unstun get here.
        let stem = format!("web-{:06}", self.nodes.len() + 100);
        let (name, extent) = (format!("{stem}.vmdk"), format!("{stem}-sesparse.vmdk"));
        let descriptor = format!(
            "# Disk DescriptorFile\nversion=1\nCID={:08x}\nparentCID={}\ncreateType=\"seSparse\"\n\
             parentFileNameHint=\"{}\"\nRW {} SESPARSE \"{extent}\"\n",
            self.rng.below(0xffff_ffff),
            value(&self.path(parent), "CID"),
            self.hint(folder, parent),
            self.sectors,
        );
        std::fs::write(self.folder(folder).join(&name), descriptor).unwrap();
        let path = self.folder(folder).join(&extent);
        image.pieces().iter().for_each(|(at, piece)| write_at(&path, *at, piece));
        self.push(parent, folder, (name, extent), content)
    }

    /// Returns one of the forms of a hint that QEMU understands too.
    fn hint(&mut self, folder: usize, parent: usize) -> String {
        let below = &self.nodes[parent];
        match self.rng.below(3) {
            0 => text(&self.path(parent)),
            1 if below.folder == folder => below.name.clone(),
            _ => format!("../{}/{}", FOLDERS[below.folder], below.name),
        }
    }

    fn rewrite_hint(&mut self, node: usize, parent: usize) {
        let path = self.path(node);
        let hint = self.hint(self.nodes[node].folder, parent);
        let old = format!("\"{}\"", value(&path, "parentFileNameHint"));
        let descriptor = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, descriptor.replace(&old, &format!("\"{hint}\""))).unwrap();
    }

    /// Leaves a delta as after a crash: the mark is set, and the free pointer is that of the empty delta.
    fn leave_unclean(&self, node: usize) {
        let path = self.extent_path(node);
        if self.nodes[node].extent.ends_with("-sesparse.vmdk") {
            write_at(&path, SESPARSE_UNCLEAN, &1_u64.to_le_bytes());
            write_at(&path, SESPARSE_UNCLEAN + 8, &0_u64.to_le_bytes());
            return;
        }
        let first = self.first_data_sector(node) as u32;
        write_at(&path, FREE_SECTOR as u64, &first.to_le_bytes());
        write_at(&path, UNCLEAN as u64, &1u32.to_le_bytes());
    }

    /// Returns the first sector after header and grain directory of a VMFSsparse delta.
    fn first_data_sector(&self, node: usize) -> u64 {
        let header = std::fs::read(self.extent_path(node)).unwrap();
        word(&header, DIRECTORY_SECTOR) + (word(&header, DIRECTORY_ENTRIES) * 4).div_ceil(SECTOR)
    }

    /// Returns the bytes of a file of `Base::Vmfs` or of a child of it that are indispensable: a file that ends among
    /// them has lost data.
    pub(super) fn bytes_in_use(&self, node: usize) -> Range<u64> {
        let file = std::fs::read(self.extent_path(node)).unwrap();
        match self.nodes[node].extent.rsplit('-').next() {
            Some("delta.vmdk") => self.first_data_sector(node) * SECTOR..word(&file, FREE_SECTOR) * SECTOR,
            Some("sesparse.vmdk") => {
                // The file's last grain is the disk's last, of which the disk may have a part.
                let shown = (self.sectors * SECTOR - 1) % GRAIN + 1;
                let tables = u64::from_le_bytes(file[TABLES..TABLES + 8].try_into().unwrap());
                tables * SECTOR..file.len() as u64 - GRAIN + shown
            }
            _ => 0..file.len() as u64,
        }
    }

    /// Returns the content that unstun shows, from the files alone.
    pub(super) async fn read(&self, node: usize) -> Result<Vec<u8>> {
        let home = self.home(self.nodes[node].folder);
        let home: &dyn Manifest = &home;
        let chain = home.chain(&self.nodes[node].name).await?;
        assert_eq!(chain.len(), self.nodes[node].depth + 1);
        let mut content = vec![0; (self.sectors * SECTOR) as usize];
        for info in chain {
            assert_eq!(info.size_bytes, self.sectors * SECTOR, "{}", info.name);
            show(&*home.open(&info.name, false).await?, 0, &mut content).await?;
        }
        Ok(content)
    }

    async fn check(&self, node: usize) -> Vec<String> {
        let home = self.home(self.nodes[node].folder);
        let home: &dyn Manifest = &home;
        home.open(&self.nodes[node].name, false).await.unwrap().check().await.unwrap()
    }

    /// Returns the content that QEMU shows.
    pub(super) fn convert(&self, node: usize) -> Vec<u8> {
        convert(&self.root, &text(&self.path(node)))
    }

    /// Checks that QEMU finds the same links with the same sizes.
    fn compare_sizes(&self, node: usize) {
        let text = qemu_img(&self.root, &["info", "--backing-chain", &text(&self.path(node))]);
        let lines = text.lines().filter_map(|line| line.strip_prefix("virtual size: "));
        // virtual size: 4 MiB (4194304 bytes)
        let theirs: Vec<&str> = lines.map(|line| line.split(['(', ' ']).rev().nth(1).unwrap()).collect();
        let down = std::iter::successors(Some(node), |at| self.nodes[*at].parent);
        let sectors = down.map(|at| if at == 0 { self.sectors - self.unseen } else { self.sectors });
        let ours: Vec<String> = sectors.map(|sectors| (sectors * SECTOR).to_string()).collect();
        assert_eq!(theirs, ours, "{text}");
    }

    /// Compares every link as unstun shows it, and every leaf as QEMU does.
    pub(super) async fn compare(&self) {
        let parents: BTreeSet<usize> = self.nodes.iter().filter_map(|node| node.parent).collect();
        for (at, node) in self.nodes.iter().enumerate() {
            let path = self.path(at);
            assert!(
                self.read(at).await.unwrap() == node.content,
                "{}: we read something else",
                path.display()
            );
            assert_eq!(self.check(at).await, Vec::<String>::new(), "{}", path.display());
            if parents.contains(&at) || (at == 0 && self.unseen > 0) {
                continue;
            }
            assert!(self.convert(at) == node.content, "{}: QEMU reads something else", path.display());
            self.compare_sizes(at);
        }
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().into()
}

fn word(header: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(header[at..at + 4].try_into().unwrap()).into()
}

/// Returns the value of a header line of a descriptor.
fn value(descriptor: &Path, key: &str) -> String {
    let text = std::fs::read_to_string(descriptor).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("{key} is not in {text}")).trim_matches('"').into()
}

/// Returns a delta with every type of entry; `content` becomes the disk's content through it.
fn random_image(rng: &mut Rng, content: &mut [u8]) -> Image {
    let mut image = Image::new(content.len() as u64 / SECTOR, if rng.coin() { 1 << 20 } else { 32 << 10 });
    if rng.coin() {
        image = image.in_order_of_use();
    }
    let mut grains: Vec<&mut [u8]> = content.chunks_mut(GRAIN as usize).collect();
    let last = grains.len() as u64 - 1;
    // There is space for each grain of the disk once; a grain without data shows zeros.
    let mut chosen: BTreeSet<u64> = (0..rng.below(200)).map(|_| rng.below(last + 1)).collect();
    chosen.remove(&last);
    for at in chosen {
        let fill = rng.between(1, 255) as u8;
        let kind = rng.below(6);
        match kind {
            0 => image.zero(at),
            1 => image.unmap(at),
            2 => image.data(at, fill).unmap(at),
            _ => image.data(at, fill),
        };
        grains[at as usize].fill(if kind > 2 { fill } else { 0 });
    }
    // In the file's last grain, so that a truncation of it is detected.
    image.data(last, 0xEE);
    grains[last as usize].fill(0xEE);
    image
}
