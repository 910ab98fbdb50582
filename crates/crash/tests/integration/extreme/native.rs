//! Extreme values in a store: every field of its superblock, and of every item of its catalogue. The checksums are then
//! made right again, as the store's encoder would.

use std::collections::BTreeMap;
use std::rc::Rc;

use blk::Env;
use blk::manifest::{DiskMode, NewDisk};
use blk::reactor::OpenMode;
use engine::native::bytes::{Reader, Writer};
use engine::native::change::Key;
use engine::native::layout::{BLOCK, CHECKSUM_AT, Extent, checksum, page_checksum, put_u64};
use engine::native::space::Growth;
use engine::native::superblock::Superblock;
use engine::native::{NativeVm, NewNativeVm, NewStore, Store, StoreOptions};
use engine::{CommitWhat, Machine, Options};
use sim::{Options as SimOptions, Rng, SimWorld, View};

use super::{EXTREMES, draw, play, verbs};

const FILE: &str = "/store";
const PAGE_HEADER: usize = 32;
const PAYLOAD: usize = BLOCK as usize - PAGE_HEADER;
/// Offset of the superblock's first word, and the number of its words.
const WORDS_AT: usize = 40;
const WORDS: usize = 90;
const SLOT_BLOCKS: [u64; 2] = [0, 8];

async fn open(env: &Env) -> blk::Result<Rc<Store>> {
    let file = env.open_root("/")?.open("store", OpenMode::Write).await?;
    let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
    Store::open(env.clone(), file, options, Growth::default(), true).await
}

/// Makes two VMs, one of them with a tree of snapshots, a disk that is reset, and space that was freed again.
fn sound() -> Vec<u8> {
    let world = SimWorld::new(1, SimOptions::default());
    let made = world.run(|env| async move {
        let file = env.open_root("/")?.create_new("store").await?;
        Store::format(&env, &file, NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT })
            .await?;
        env.open_root("/")?.sync().await?;
        drop(file);
        let store = open(&env).await?;
        let modes = [DiskMode::Persistent, DiskMode::IndependentNonpersistent, DiskMode::Persistent];
        let disks = modes.map(|mode| NewDisk { size_bytes: 1 << 20, mode, folder: None, source: None });
        let id = store.create_vm(NewNativeVm { name: "web", disks: &disks, slots: &[] }).await?;
        store.create_vm(NewNativeVm { name: "other", disks: &disks[..1], slots: &[] }).await?;
        let vm = NativeVm::open(&store, id, Options::default()).await?;
        for name in ["a", "b", "c"] {
            vm.clone().take(name, "of the test").await?;
            let (disk, _client) = Machine::attach(&*vm, 0, "test").await?;
            disk.write(8192, blk::Buf::zeroed(4096).freeze()).await?;
        }
        vm.clone().revert(Some("a"), None, true).await?;
        let job = vm.clone().commit(&CommitWhat::One("b".to_owned())).await?;
        job.wait().await;
        vm.clone().discard("c", true).await?;
        vm.clone_to("a", "clone").await?;
        vm.close().await?;
        store.close().await
    });
    made.expect("no cut").expect("a sound store");
    world.read_file(FILE, View::Durable).expect("it was made")
}

#[derive(Clone)]
struct Blob {
    bytes: u64,
    /// The pages of each copy.
    copies: [Vec<Extent>; 2],
}

/// A store's file, and the place of its catalogue.
struct Image {
    file: Vec<u8>,
    slot: usize,
    superblock: Superblock,
    directory: Blob,
    chunks: Vec<(Key, Blob)>,
}

impl Image {
    fn read(file: &[u8]) -> Image {
        let page = |block: u64| &file[(block * BLOCK) as usize..][..BLOCK as usize];
        let slots = [0, 1].map(|slot| Superblock::decode(page(SLOT_BLOCKS[slot]), slot, FILE).ok());
        let slot =
            usize::from(slots[1].as_ref().map(|s| s.checkpoint) > slots[0].as_ref().map(|s| s.checkpoint));
        let superblock = slots.into_iter().nth(slot).flatten().expect("a sound one");
        let mut image = Image {
            file: file.to_vec(),
            slot,
            superblock,
            directory: Blob { bytes: 0, copies: [const { Vec::new() }; 2] },
            chunks: Vec::new(),
        };
        let head = image.content(&image.head());
        image.directory = read_blob(&mut Reader::new(&head, FILE));
        let directory = image.content(&image.directory);
        let mut input = Reader::new(&directory, FILE);
        while !input.is_empty() {
            let key = input.key().expect("a key");
            image.chunks.push((key, read_blob(&mut input)));
        }
        image
    }

    fn head(&self) -> Blob {
        let at = self.superblock.catalogue;
        let copies = [at.addr, self.superblock.second_catalogue];
        Blob { bytes: at.bytes, copies: copies.map(|addr| vec![Extent { addr, len: 1 }]) }
    }

    fn pages(extents: &[Extent]) -> impl Iterator<Item = usize> + use<> {
        let blocks: Vec<u64> = extents.iter().flat_map(|extent| extent.addr..extent.end()).collect();
        blocks.into_iter().map(|block| (block * BLOCK) as usize)
    }

    fn content(&self, blob: &Blob) -> Vec<u8> {
        let pages = Image::pages(&blob.copies[0])
            .flat_map(|at| self.file[at + PAGE_HEADER..][..PAYLOAD].iter().copied());
        pages.take(blob.bytes as usize).collect()
    }

    /// Writes the content to both copies, and returns its checksum.
    fn write(&mut self, blob: &Blob, content: &[u8]) -> u64 {
        assert_eq!(content.len() as u64, blob.bytes, "what is changed keeps its length");
        for extents in &blob.copies {
            for (at, payload) in Image::pages(extents).zip(content.chunks(PAYLOAD)) {
                self.file[at + PAGE_HEADER..][..payload.len()].copy_from_slice(payload);
                seal(&mut self.file[at..][..BLOCK as usize]);
            }
        }
        checksum(content)
    }

    fn items(&self, chunk: usize) -> Vec<(Key, Vec<u8>)> {
        let content = self.content(&self.chunks[chunk].1);
        let mut input = Reader::new(&content, FILE);
        let mut items = Vec::new();
        while !input.is_empty() {
            items.push((input.key().expect("a key"), input.bytes("value").expect("a value").to_vec()));
        }
        items
    }

    /// Writes a chunk's items, and every checksum from there up to the superblock.
    fn write_items(&mut self, chunk: usize, items: &[(Key, Vec<u8>)]) {
        let mut out = Writer::default();
        for (key, value) in items {
            out.key(key).bytes(value);
        }
        let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
        for at in 0..self.chunks.len() {
            sums.insert(at, checksum(&self.content(&self.chunks[at].1)));
        }
        let blob = self.chunks[chunk].1.clone();
        sums.insert(chunk, self.write(&blob, &out.done()));
        let mut directory = Writer::default();
        for (at, (key, blob)) in self.chunks.iter().enumerate() {
            write_blob(directory.key(key), blob, sums[&at]);
        }
        let blob = self.directory.clone();
        let sum = self.write(&blob, &directory.done());
        let mut head = Writer::default();
        write_blob(&mut head, &blob, sum);
        let mut head = head.done();
        // The copy of the superblock follows.
        head.extend_from_slice(&self.content(&self.head())[head.len()..]);
        self.superblock.catalogue.checksum = self.write(&self.head(), &head);
        let page = self.superblock.encode(self.slot);
        let at = (SLOT_BLOCKS[self.slot] * BLOCK) as usize;
        self.file[at..][..BLOCK as usize].copy_from_slice(&page);
    }

    fn bend_item(&mut self, rng: &mut Rng) {
        let chunk = rng.below(self.chunks.len() as u64) as usize;
        let mut items = self.items(chunk);
        let at = rng.below(items.len() as u64) as usize;
        let (key, value) = &mut items[at];
        let extreme = draw(rng, &EXTREMES);
        match rng.below(8) {
            0 => key.minor = extreme,
            _ => {
                let width = draw(rng, &[1, 4, 8]).min(value.len());
                if width > 0 {
                    let from = rng.below((value.len() - width + 1) as u64) as usize;
                    value[from..from + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
                }
            }
        }
        self.write_items(chunk, &items);
    }

    fn bend_superblock(&mut self, rng: &mut Rng) {
        let at = (SLOT_BLOCKS[self.slot] * BLOCK) as usize;
        let page = &mut self.file[at..][..BLOCK as usize];
        put_u64(page, WORDS_AT + rng.below(WORDS as u64) as usize * 8, draw(rng, &EXTREMES));
        seal(page);
    }
}

fn seal(page: &mut [u8]) {
    let sum = page_checksum(page);
    put_u64(page, CHECKSUM_AT, sum);
}

fn read_blob(input: &mut Reader<'_>) -> Blob {
    let bytes = input.u64("length").expect("a length");
    input.u64("checksum").expect("a checksum");
    let copies = [0, 1].map(|_| {
        let extents = input.u32("number of extents").expect("a number");
        let mut extent =
            || Extent { addr: input.u64("address").expect("one"), len: input.u64("blocks").expect("one") };
        (0..extents).map(|_| extent()).collect()
    });
    Blob { bytes, copies }
}

fn write_blob(out: &mut Writer, blob: &Blob, sum: u64) {
    out.u64(blob.bytes).u64(sum);
    for extents in &blob.copies {
        out.u32(extents.len() as u32);
        for extent in extents {
            out.u64(extent.addr).u64(extent.len);
        }
    }
}

fn every_verb(file: &[u8]) {
    let world = SimWorld::new(7, SimOptions::default());
    world.write_file(FILE, file);
    let ran = world.run(|env| async move {
        for _ in 0..2 {
            let store = open(&env).await?;
            let _ = store.check().await;
            for (id, _) in store.vms().await? {
                let Ok(vm) = NativeVm::open(&store, id, Options::default()).await else { continue };
                if let Some(snapshot) = Machine::state(&*vm).snapshots.first() {
                    let _ = vm.clone_to(&snapshot.name, "another").await;
                }
                verbs::carry_out(vm).await;
            }
            if let Some((id, _)) = store.vms().await?.first() {
                let _ = store.remove_vm(*id).await;
            }
            let _ = store.checkpoint().await;
            store.close().await?;
        }
        Ok(())
    });
    let _: blk::Result<()> = ran.expect("no cut");
}

#[test]
fn extreme_numbers_in_a_store_panic_no_verb() {
    let sound = sound();
    every_verb(&sound);
    play("native", |rng| {
        let mut image = Image::read(&sound);
        match rng.below(5) {
            0 => image.bend_superblock(rng),
            _ => image.bend_item(rng),
        }
        every_verb(&image.file);
    });
}
