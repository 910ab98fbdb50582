//! Extreme values in a VM's files: every number in its texts, and every word of its deltas' metadata.

use std::rc::Rc;

use blk::manifest::DiskMode;
use blk::{Buf, Env};
use engine::native::space::Growth as StoreGrowth;
use engine::native::{NewStore, Store, StoreOptions};
use engine::{CommitWhat, Machine, Options, Vm};
use sim::{Options as SimOptions, Rng, SimWorld, View};
use vmdk::delta::Growth;
use vmdk::home::{Folders, Home, NewVm};

use super::{EXTREMES, draw, play, verbs};

const GROWTH: Growth = Growth { step_bytes: 64 << 10, chunk_bytes: 16 << 10 };
/// Bytes of a delta's header, directory and first table.
const METADATA_BYTES: usize = 4096;
/// Lines that only some homes have.
const LINES: [(&str, &str); 6] = [
    ("/web/web.vmsd", "unstun.lastJob"),
    ("/web/web.vmsd", "snapshot.lastUID"),
    ("/web/web.vmsd", "snapshot0.uid"),
    ("/web/web.vmx", "unstun.diskCount"),
    ("/web/web.vmx", "unstun.number.scsi0:0"),
    ("/web/web.vmx", "unstun.number.scsi0:1"),
];

type Files = Vec<(String, Vec<u8>)>;

fn options() -> Options {
    Options { reserve_bytes: 1 << 20, ..Options::default() }
}

async fn folder(env: &Env, name: &str) -> blk::Result<blk::Dir> {
    let root = env.open_root("/")?;
    let dir = root.open_dir(name, true).await?;
    root.sync().await?;
    Ok(dir)
}

async fn open(env: &Env) -> blk::Result<Rc<Vm>> {
    let home = Home::new(folder(env, "web").await?, Folders::default(), GROWTH);
    Vm::open(env.clone(), Rc::new(home), options()).await
}

/// Makes three disks, two snapshots in a row and one aside, and a finished job, and closes every file.
fn sound() -> Files {
    let world = SimWorld::new(1, SimOptions::default());
    let made = world.run(|env| async move {
        let dir = folder(&env, "web").await?;
        Home::create(dir, Folders::default(), GROWTH, NewVm::new("web", &[1 << 20; 3])).await?;
        let vm = open(&env).await?;
        Machine::set_mode(vm.clone(), 2, DiskMode::IndependentNonpersistent).await?;
        for name in ["a", "b", "c", "d"] {
            vm.clone().take(name, "of the test").await?;
            let (disk, _client) = Machine::attach(&*vm, 0, "test").await?;
            disk.write(4096, Buf::zeroed(4096).freeze()).await?;
        }
        vm.clone().discard("d", true).await?;
        vm.clone().revert(Some("b"), None, true).await?;
        let job = vm.clone().commit(&CommitWhat::One("b".to_owned())).await?;
        job.wait().await;
        vm.close().await
    });
    made.expect("no cut").expect("a sound home");
    let mut files = Files::new();
    for folder in ["/web", "/web/.unstun"] {
        for name in world.list(folder, View::Durable).unwrap_or_default() {
            let path = format!("{folder}/{name}");
            files.extend(world.read_file(&path, View::Durable).map(|bytes| (path, bytes)));
        }
    }
    assert!(files.len() > 10, "{}", files.len());
    files
}

/// Replaces one number in a text, or one word of a delta.
fn bend(files: &mut Files, rng: &mut Rng) {
    if rng.below(4) == 0 {
        let (path, key) = draw(rng, &LINES);
        let (_, bytes) = files.iter_mut().find(|(known, _)| known == path).expect("it has this file");
        return set_line(bytes, key, draw(rng, &EXTREMES));
    }
    let at = rng.below(files.len() as u64) as usize;
    let bytes = &mut files[at].1;
    match std::str::from_utf8(bytes) {
        Ok(text) => *bytes = bend_text(text, rng).into_bytes(),
        Err(_) => bend_words(bytes, rng),
    }
}

fn set_line(bytes: &mut Vec<u8>, key: &str, value: u64) {
    let text = String::from_utf8(std::mem::take(bytes)).expect("a text");
    let others = text.lines().filter(|line| !line.starts_with(&format!("{key} ")));
    let lines: String = others.map(|line| format!("{line}\n")).collect();
    *bytes = format!("{lines}{key} = \"{value}\"\n").into_bytes();
}

fn bend_text(text: &str, rng: &mut Rng) -> String {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> =
        (0..text.len()).filter(|at| is_digit(*at) && (*at == 0 || !is_digit(at - 1))).collect();
    if starts.is_empty() {
        return text.to_owned();
    }
    let start = draw(rng, &starts);
    let end = (start..).find(|at| !is_digit(*at)).expect("texts end");
    let sign = if rng.below(8) == 0 { "-" } else { "" };
    format!("{}{sign}{}{}", &text[..start], draw(rng, &EXTREMES), &text[end..])
}

fn bend_words(bytes: &mut [u8], rng: &mut Rng) {
    let words = bytes.len().min(METADATA_BYTES) / 4;
    if words == 0 {
        return;
    }
    let at = rng.below(words as u64) as usize * 4;
    bytes[at..at + 4].copy_from_slice(&(draw(rng, &EXTREMES) as u32).to_le_bytes());
}

/// Opens the VM twice, so that what the verbs have written is read too; then imports, clones, moves and checks it.
fn every_verb(files: &Files, seed: u64) {
    let world = SimWorld::new(seed, SimOptions::default());
    let made = world.run(|env| async move {
        for name in ["web", "copy", "clone"] {
            let dir = folder(&env, name).await?;
            dir.open_dir(".unstun", true).await?;
            dir.sync().await?;
        }
        Ok::<_, blk::Error>(())
    });
    made.expect("no cut").expect("empty folders");
    files.iter().for_each(|(path, bytes)| world.write_file(path, bytes));
    let ran = world.run(|env| async move {
        let dir = folder(&env, "web").await?;
        let _ = vmdk::check::check(&dir, vmdk::check::Target::Folder).await;
        for _ in 0..2 {
            if let Ok(vm) = open(&env).await {
                relocate(&env, &vm).await;
                verbs::carry_out(vm).await;
            }
        }
        take_over(&env).await
    });
    let _: blk::Result<()> = ran.expect("no cut");
}

async fn take_over(env: &Env) -> blk::Result<()> {
    let folders = Folders { foreign: vec![folder(env, "web").await?], ..Folders::default() };
    let source = Home::new(folder(env, "web").await?, Folders::default(), GROWTH);
    let copy = Home::import(&source, folder(env, "copy").await?, folders, GROWTH, "copy").await;
    if let Some(snapshot) = source.read().await?.snapshots.first() {
        let folders = Folders { foreign: vec![folder(env, "web").await?], ..Folders::default() };
        let _ = source.clone_to(snapshot.id, folder(env, "clone").await?, folders, "clone").await;
    }
    let vm = Vm::open(env.clone(), Rc::new(copy?), options()).await?;
    verbs::carry_out(vm).await;
    Ok(())
}

/// Makes the target of a move, as it is before anything is copied.
async fn relocate(env: &Env, vm: &Rc<Vm>) {
    let made = async {
        let file = env.open_root("/")?.create_new("store").await?;
        Store::format(env, &file, NewStore { journal_pages: 1024, group_blocks: 512, ..NewStore::DEFAULT })
            .await?;
        let options = StoreOptions { reserve_blocks: 64, ..StoreOptions::default() };
        let store = Store::open(env.clone(), file, options, StoreGrowth::default(), true).await?;
        let id = store.new_vm_id();
        store.create_vm_like(id, "moved", &vm.state().disks).await?;
        let moved = engine::native::NativeVm::open(&store, id, Options::default()).await?;
        verbs::carry_out(moved).await;
        store.close().await
    };
    let _: blk::Result<()> = made.await;
}

#[test]
fn extreme_numbers_in_the_files_of_a_vm_panic_no_verb() {
    let sound = sound();
    play("redo", |rng| {
        let mut files = sound.clone();
        for _ in 0..=rng.below(2) {
            bend(&mut files, rng);
        }
        every_verb(&files, 7);
    });
}

/// The three numbers come from a report from outside.
#[test]
fn the_reported_extreme_numbers_are_refused_by_name() {
    for (path, key, value) in [
        ("/web/web.vmsd", "unstun.lastJob", u64::MAX),
        ("/web/web.vmx", "unstun.number.scsi0:1", u64::from(u32::MAX)),
        ("/web/web.vmx", "unstun.diskCount", u64::from(u32::MAX)),
        ("/web/web.vmsd", "snapshot.lastUID", u64::from(u32::MAX)),
    ] {
        let mut files = sound();
        let (_, bytes) = files.iter_mut().find(|(known, _)| known == path).expect("it has this file");
        set_line(bytes, key, value);
        let world = SimWorld::new(1, SimOptions::default());
        let made = world
            .run(|env| async move { folder(&env, "web").await?.open_dir(".unstun", true).await.map(drop) });
        made.expect("no cut").expect("an empty folder");
        files.iter().for_each(|(path, bytes)| world.write_file(path, bytes));
        let error = world.run(|env| async move { open(&env).await.err() }).expect("no cut").expect("refused");
        let said = error.to_string();
        assert!(
            said.contains(key) && said.contains(&value.to_string()) && said.contains("expected"),
            "{said}"
        );
    }
    let disk = "version=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n";
    let huge = format!("{disk}RW 18014398509481983 VMFS \"web-flat.vmdk\"\n");
    let error = vmdk::descriptor::Descriptor::parse("web.vmdk", huge.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("64 TiB"), "{error}");
}
