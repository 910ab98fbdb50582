//! A power cut, a kill of the process, or a failed I/O at every event of the verbs that create and remove VMs. After
//! the next start a verb has happened or has not. No VM is broken, no folder is without a VM, and no VM is without its
//! folder. No record is unfinished, no name is taken, and the content of other VMs is intact.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::rc::Rc;

use api::{BinRestore, Store, VmCondition, VmRename};
use blk::Errno;
use crash::campaign::{on_all_cores, setting};
use engine::native::{VmHome, VmHomeState};
use sim::{Action, Cut, Fault, Rng, SimWorld};

use crate::daemon::bin::records::{BinState, parse_folder};
use crate::daemon::defect::Defect;
use crate::daemon::simulated_tests::{
    DATASTORE, FAST, FOREIGN, Outcome, bin, boot, clone, create, evict, import, read, remove, restore,
    served, take, text, world, write,
};
use crate::daemon::state::Daemon;
use crate::daemon::vm::home_records::HomeState;
use crate::daemon::vm::mark;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    CreateFiles,
    CreateNative,
    CloneFiles,
    CloneNative,
    Import,
    ImportInPlace,
    RemoveFiles,
    RemoveNative,
    RemoveClone,
    Forget,
    ForgetInPlace,
    BinFiles,
    BinNative,
    BinInPlace,
    BinClosed,
    RestoreFiles,
    RestoreNative,
    RestoreInPlace,
    EvictFiles,
    EvictNative,
    RenameFiles,
    RenameNative,
}

const VERBS: [Verb; 22] = [
    Verb::CreateFiles,
    Verb::CreateNative,
    Verb::CloneFiles,
    Verb::CloneNative,
    Verb::Import,
    Verb::ImportInPlace,
    Verb::RemoveFiles,
    Verb::RemoveNative,
    Verb::RemoveClone,
    Verb::Forget,
    Verb::ForgetInPlace,
    Verb::BinFiles,
    Verb::BinNative,
    Verb::BinInPlace,
    Verb::BinClosed,
    Verb::RestoreFiles,
    Verb::RestoreNative,
    Verb::RestoreInPlace,
    Verb::EvictFiles,
    Verb::EvictNative,
    Verb::RenameFiles,
    Verb::RenameNative,
];
/// Upper bound on the number of events of a verb.
const EVENTS: u64 = 1500;
/// Distance between two cut events of a verb. Each campaign begins at another event.
const STRIDE: u64 = 7;
/// Number of events of a recovery within which it is cut as well.
const RECOVERY_EVENTS: u64 = 80;
/// Name of the VM that others are clones of. `BYTE` is its content.
const PARENT: &str = "parent";
/// Name of a VM before it is renamed.
const OLD: &str = "old";
const BYTE: u8 = 7;

impl Verb {
    /// Returns the VM that the verb creates or removes.
    fn subject(self) -> &'static str {
        match self {
            Verb::Import | Verb::ImportInPlace | Verb::ForgetInPlace => "esx",
            Verb::BinInPlace | Verb::RestoreInPlace => "esx",
            _ => "web",
        }
    }

    fn makes(self) -> bool {
        matches!(
            self,
            Verb::CreateFiles
                | Verb::CreateNative
                | Verb::CloneFiles
                | Verb::CloneNative
                | Verb::Import
                | Verb::ImportInPlace
                | Verb::RestoreFiles
                | Verb::RestoreNative
                | Verb::RestoreInPlace
        ) || self.renames()
    }

    /// Returns whether the verb gives a VM `OLD` the name of the subject.
    fn renames(self) -> bool {
        matches!(self, Verb::RenameFiles | Verb::RenameNative)
    }

    /// Returns whether the verb moves the subject into or out of the bin. The bin must then have the subject whenever
    /// the VM is not listed.
    fn bins(self) -> bool {
        matches!(
            self,
            Verb::BinFiles
                | Verb::BinNative
                | Verb::BinInPlace
                | Verb::BinClosed
                | Verb::RestoreFiles
                | Verb::RestoreNative
                | Verb::RestoreInPlace
        )
    }

    fn evicts(self) -> bool {
        matches!(self, Verb::EvictFiles | Verb::EvictNative)
    }

    /// Returns whether the subject's home is outside the datastore.
    fn in_place(self) -> bool {
        matches!(self, Verb::ImportInPlace | Verb::ForgetInPlace | Verb::BinInPlace | Verb::RestoreInPlace)
    }

    fn parent_store(self) -> Option<Store> {
        match self {
            Verb::CloneFiles | Verb::RemoveClone => Some(Store::Redo),
            Verb::CloneNative => Some(Store::Native),
            _ => None,
        }
    }

    fn disks(self) -> u64 {
        match self {
            Verb::CreateFiles
            | Verb::CreateNative
            | Verb::RemoveFiles
            | Verb::RemoveNative
            | Verb::Forget
            | Verb::BinFiles
            | Verb::BinNative
            | Verb::RestoreFiles
            | Verb::RestoreNative => 2,
            _ => 1,
        }
    }

    /// Creates the state before the verb.
    async fn prepare(self, daemon: Rc<Daemon>) -> Outcome<()> {
        if let Some(store) = self.parent_store() {
            create(&daemon, PARENT, store, &[None]).await?;
            write(&daemon, PARENT, BYTE).await?;
            take(&daemon, PARENT).await?;
        }
        match self {
            Verb::RemoveFiles | Verb::Forget => {
                create(&daemon, "web", Store::Redo, &[None, Some(FAST)]).await?;
                take(&daemon, "web").await
            }
            Verb::RemoveNative => {
                create(&daemon, "web", Store::Native, &[None, None]).await?;
                take(&daemon, "web").await
            }
            Verb::RemoveClone => clone(&daemon, PARENT, "web").await,
            Verb::ForgetInPlace => import(&daemon, true).await,
            Verb::RenameFiles | Verb::RenameNative => {
                let store = if self == Verb::RenameFiles { Store::Redo } else { Store::Native };
                create(&daemon, OLD, store, &[None]).await?;
                write(&daemon, OLD, BYTE).await?;
                take(&daemon, OLD).await
            }
            _ => self.prepare_bin(&daemon).await,
        }
    }

    async fn prepare_bin(self, daemon: &Rc<Daemon>) -> Outcome<()> {
        match self {
            Verb::BinFiles | Verb::RestoreFiles | Verb::EvictFiles => {
                create(daemon, "web", Store::Redo, &[None, Some(FAST)]).await?;
                write(daemon, "web", BYTE).await?;
                take(daemon, "web").await?;
            }
            Verb::BinNative | Verb::RestoreNative | Verb::EvictNative => {
                create(daemon, "web", Store::Native, &[None, None]).await?;
                write(daemon, "web", BYTE).await?;
                take(daemon, "web").await?;
            }
            Verb::BinClosed => {
                create(daemon, "web", Store::Redo, &[None]).await?;
                daemon.vm_close(&"web".parse().expect("a name"), false).await.map_err(text("vm close"))?;
            }
            Verb::BinInPlace | Verb::RestoreInPlace => {
                import(daemon, true).await?;
                write(daemon, "esx", BYTE).await?;
            }
            _ => {}
        }
        let is_in_it = self.evicts() || self.makes() && self.bins();
        if is_in_it { bin(daemon, self.subject()).await } else { Ok(()) }
    }

    async fn act(self, daemon: &Rc<Daemon>) -> Outcome<()> {
        match self {
            Verb::CreateFiles => create(daemon, "web", Store::Redo, &[None, Some(FAST)]).await,
            Verb::CreateNative => create(daemon, "web", Store::Native, &[None, None]).await,
            Verb::CloneFiles | Verb::CloneNative => clone(daemon, PARENT, "web").await,
            Verb::Import => import(daemon, false).await,
            Verb::ImportInPlace => import(daemon, true).await,
            Verb::RemoveFiles | Verb::RemoveNative | Verb::RemoveClone => remove(daemon, "web", true).await,
            Verb::Forget => remove(daemon, "web", false).await,
            Verb::ForgetInPlace => remove(daemon, "esx", false).await,
            Verb::BinFiles | Verb::BinNative | Verb::BinClosed => bin(daemon, "web").await,
            Verb::BinInPlace => bin(daemon, "esx").await,
            Verb::RestoreFiles | Verb::RestoreNative => restore(daemon, "web").await,
            Verb::RestoreInPlace => restore(daemon, "esx").await,
            Verb::EvictFiles | Verb::EvictNative => evict(daemon).await,
            Verb::RenameFiles | Verb::RenameNative => {
                let (old, name) = (OLD.parse().expect("a name"), "web".parse().expect("a name"));
                daemon.vm_rename(&old, VmRename { name }).await.map(drop).map_err(text("vm rename"))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    PowerCut,
    /// The process is killed, and the machine keeps running.
    Killed,
    /// One I/O fails. The process continues, and is killed when the verb has answered.
    Fails(Errno),
}

impl Trouble {
    pub(super) const ALL: [Trouble; 4] =
        [Trouble::PowerCut, Trouble::Killed, Trouble::Fails(Errno::EIO), Trouble::Fails(Errno::ENOSPC)];
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    verb: Verb,
    nth: u64,
    trouble: Trouble,
    /// Event at which the recovery is cut, too.
    again: Option<u64>,
    seed: u64,
}

/// Runs a plan, and returns whether the trouble struck.
fn run(plan: Plan, defect: Option<Defect>) -> Outcome<bool> {
    let world = world(plan.seed);
    served(&world, None, move |daemon| plan.verb.prepare(daemon)).expect("nothing is cut")?;
    let (answered, struck) = troubled(&world, plan, defect)?;
    end(&world, plan.trouble);
    if let Some(nth) = plan.again {
        let armed = world.clone();
        armed.cut_at(Cut::Event(nth));
        if let Some(ended) = served(&world, defect, |_| async { Ok(()) }) {
            ended?;
        }
        world.cancel_cut();
        end(&world, plan.trouble);
    }
    // The recovery may have been cut itself. Nothing may be left that only a second start would remove.
    for last in [false, true] {
        let checked = world.run(move |env| async move {
            let daemon = boot(env, defect).await?;
            check(&daemon, plan.verb, answered).await?;
            if last {
                empty(&daemon, plan.verb).await?;
            }
            daemon.shut_down().await.map_err(text("ending"))
        });
        checked.expect("nothing is cut")?;
    }
    check_empty(&world, plan.verb)?;
    Ok(struck)
}

/// Returns whether the verb succeeded, and whether the trouble struck.
fn troubled(world: &SimWorld, plan: Plan, defect: Option<Defect>) -> Outcome<(bool, bool)> {
    let armed = world.clone();
    let ended = world.run(move |env| async move {
        let daemon = boot(env, defect).await?;
        strike(&armed, plan.trouble, plan.nth, plan.verb.act(&daemon)).await
    });
    ended.unwrap_or(Ok((false, true)))
}

/// Runs `act` with the trouble at its `nth` event. Returns whether `act` succeeded, and whether the trouble struck.
pub(super) async fn strike(
    armed: &SimWorld,
    trouble: Trouble,
    nth: u64,
    act: impl Future<Output = Outcome<()>>,
) -> Outcome<(bool, bool)> {
    let before = armed.events();
    match trouble {
        // Each I/O is two events.
        Trouble::Fails(errno) => armed.add_fault(Fault::nth(nth / 2 + 1, Action::Fail(errno))),
        _ => armed.cut_at(Cut::Event(nth)),
    }
    let answered = act.await;
    armed.cancel_cut();
    armed.clear_faults();
    match (trouble, answered) {
        (Trouble::Fails(_), answered) => Ok((answered.is_ok(), armed.events() - before >= nth)),
        (_, Err(e)) => Err(e),
        _ => Ok((true, false)),
    }
}

pub(super) fn end(world: &SimWorld, trouble: Trouble) {
    match trouble {
        Trouble::PowerCut => world.power_cut(),
        Trouble::Killed | Trouble::Fails(_) => world.kill(),
    }
}

async fn names(daemon: &Rc<Daemon>, path: &str) -> Outcome<Vec<String>> {
    let dir = daemon.env.open_root(path).map_err(|e| e.to_string())?;
    dir.list().await.map_err(|e| e.to_string())
}

/// Checks that everything a user can see is intact, and that everything on disk can be seen.
async fn check(daemon: &Rc<Daemon>, verb: Verb, answered: bool) -> Outcome<()> {
    let mut listed = BTreeMap::new();
    for vm in daemon.vm_list().await.map_err(text("vm list"))? {
        let as_it_was = verb == Verb::BinClosed && vm.condition == VmCondition::Closed;
        if vm.condition != VmCondition::Open && !as_it_was {
            return Err(format!("VM {} is {:?}: {}", vm.name, vm.condition, vm.message.unwrap_or_default()));
        }
        let disks = if as_it_was { Some(1) } else { vm.disks };
        listed.insert(vm.name.to_string(), (vm.store, disks));
    }
    if let Some(notice) = daemon.main.notices.borrow().first() {
        return Err(format!("a notice: {notice}"));
    }
    let there = listed.get(verb.subject());
    if there.is_some_and(|(_, disks)| *disks != Some(verb.disks())) {
        return Err(format!("it has {there:?}, expected {} disks", verb.disks()));
    }
    if answered && there.is_some() != verb.makes() {
        return Err("what was answered has not happened".to_owned());
    }
    if verb.parent_store().is_some() && read(daemon, PARENT).await? != BYTE {
        return Err("its parent shows something else".to_owned());
    }
    if verb.renames() {
        let has = if there.is_some() { verb.subject() } else { OLD };
        if listed.len() != 1 || read(daemon, has).await? != BYTE {
            return Err(format!("{listed:?}, expected one VM with its content"));
        }
    }
    check_folders(daemon, verb, &listed).await?;
    check_records(daemon, &listed)?;
    check_bin(daemon, verb, answered, &listed).await?;
    check_store(daemon, &listed).await
}

/// Checks that a VM that enters or leaves the bin is in one place, with its content.
async fn check_bin(daemon: &Rc<Daemon>, verb: Verb, answered: bool, listed: &Listed) -> Outcome<()> {
    let there = listed.contains_key(verb.subject());
    let all = daemon.main.bin.all();
    if let Some((entry, record)) = all.iter().find(|(_, record)| record.state != BinState::Kept) {
        return Err(format!("the bin's {entry} is on record as {record:?}"));
    }
    let expected = match (verb.bins(), verb.evicts()) {
        (true, _) => usize::from(!there),
        (false, true) if answered => 0,
        (false, true) => all.len().min(1),
        _ => 0,
    };
    if all.len() != expected {
        return Err(format!("the VM is listed: {there}, and the bin has {all:?}"));
    }
    let written = verb != Verb::BinClosed && (verb.bins() || verb.evicts());
    if there && written && read(daemon, verb.subject()).await? != BYTE {
        return Err("its disk shows something else".to_owned());
    }
    for (entry, record) in all {
        let home = daemon.main.bin_home(&entry, &record);
        if mark::read(&daemon.env, &home.path).await.map_err(|e| e.to_string())?.is_some()
            != (record.store == Store::Native)
        {
            return Err(format!("the home of {record:?} has another mark"));
        }
    }
    Ok(())
}

type Listed = BTreeMap<String, (Store, Option<u64>)>;

async fn check_folders(daemon: &Rc<Daemon>, verb: Verb, listed: &Listed) -> Outcome<()> {
    for name in names(daemon, DATASTORE).await? {
        let plain = name.trim_end_matches('/');
        // A VM that was removed without its disks leaves its files, and none of the daemon's.
        let forgotten = verb == Verb::Forget && plain == "web";
        let binned = parse_folder(plain).is_some_and(|(_, entry)| daemon.main.bin.get(&entry).is_some());
        let known =
            [".unstun", "store.unstun"].contains(&plain) || listed.contains_key(plain) || forgotten || binned;
        if !known {
            return Err(format!("{DATASTORE}/{name} is there, and no VM is called so"));
        }
        if forgotten
            && !listed.contains_key(plain)
            && names(daemon, "/ds/web").await?.contains(&".unstun/".to_owned())
        {
            return Err("the folder of a forgotten VM has files of ours".to_owned());
        }
    }
    let disks_elsewhere = matches!(
        verb,
        Verb::CreateFiles | Verb::RemoveFiles | Verb::BinFiles | Verb::RestoreFiles | Verb::EvictFiles
    );
    let is_there = listed.contains_key("web") || !daemon.main.bin.all().is_empty();
    let left: Vec<String> =
        names(daemon, FAST).await?.into_iter().filter(|name| name != ".unstun-names").collect();
    if disks_elsewhere && left.is_empty() == is_there {
        return Err(format!("{FAST} has {left:?}"));
    }
    let ours = names(daemon, FOREIGN).await?.contains(&".unstun/".to_owned());
    let in_bin = !daemon.main.bin.all().is_empty();
    if verb.in_place() && ours != (listed.contains_key("esx") || in_bin) {
        let inside = names(daemon, "/esx/.unstun").await.unwrap_or_default();
        return Err(format!("ours in {FOREIGN}: {inside:?}, and the VM is listed: {}", !ours));
    }
    Ok(())
}

fn check_records(daemon: &Rc<Daemon>, listed: &Listed) -> Outcome<()> {
    let records: BTreeMap<_, _> = daemon.main.records.all().into_iter().collect();
    for (name, record) in &records {
        if record.state != HomeState::Whole || !listed.contains_key(name) {
            return Err(format!("{name} is on record as {record:?}"));
        }
    }
    let missing =
        |(name, (store, _)): &(&String, &(Store, _))| *store == Store::Redo && !records.contains_key(*name);
    match listed.iter().find(missing) {
        Some((name, _)) => Err(format!("{name} is not on record")),
        None => Ok(()),
    }
}

async fn check_store(daemon: &Rc<Daemon>, listed: &Listed) -> Outcome<()> {
    let store = daemon.main.native.open().await.map_err(|e| e.to_string())?;
    let homes = store.homes().map_err(|e| e.to_string())?;
    let is_known = |home: &VmHome| match home.state {
        VmHomeState::Whole => listed.contains_key(&home.path),
        VmHomeState::Binned => {
            parse_folder(&home.path).is_some_and(|(_, entry)| daemon.main.bin.get(&entry).is_some())
        }
        VmHomeState::Unfinished => false,
    };
    if let Some((id, home)) = homes.iter().find(|(_, home)| !is_known(home)) {
        return Err(format!("the store has VM {id:032x} with the home {home:?}"));
    }
    let binned =
        daemon.main.bin.all().into_iter().filter(|(_, record)| record.store == Store::Native).count();
    let native = listed.values().filter(|(store, _)| *store == Store::Native).count() + binned;
    let vms = store.vms().await.map_err(|e| e.to_string())?;
    if vms.len() != native || homes.len() != native {
        return Err(format!("the store has {vms:x?} with homes {homes:x?}, and {native} are listed"));
    }
    for (_, home) in homes {
        let marked =
            mark::read(&daemon.env, &daemon.main.root.join(&home.path)).await.map_err(|e| e.to_string())?;
        if marked.is_none() {
            return Err(format!("the home {home:?} is not marked"));
        }
    }
    Ok(())
}

/// Checks that the name is free, or becomes free, and that everything on disk can be removed.
async fn empty(daemon: &Rc<Daemon>, verb: Verb) -> Outcome<()> {
    let is_there = daemon.is_taken(verb.subject());
    if verb.bins() && !is_there {
        bring_back_under_another_name(daemon, verb).await?;
    }
    if !is_there && verb != Verb::Forget {
        create(daemon, verb.subject(), Store::Native, &[None]).await?;
        remove(daemon, verb.subject(), true).await?;
    }
    if is_there {
        remove(daemon, verb.subject(), !verb.in_place()).await?;
    }
    if verb.evicts() {
        evict(daemon).await?;
    }
    if daemon.is_taken(OLD) {
        remove(daemon, OLD, true).await?;
    }
    if verb.parent_store().is_some() {
        remove(daemon, PARENT, true).await?;
    }
    Ok(())
}

/// Restores the VM under another name while a second VM has its name. The second VM stays unchanged.
async fn bring_back_under_another_name(daemon: &Rc<Daemon>, verb: Verb) -> Outcome<()> {
    create(daemon, verb.subject(), Store::Native, &[None]).await?;
    let entry = verb.subject().to_owned();
    let request = BinRestore { entry, name: None, datastore: None, disconnect: false };
    if daemon.bin_restore(request.clone()).await.is_ok() {
        return Err("it came back in the place of another".to_owned());
    }
    let name = Some("again".parse().expect("a name"));
    daemon.bin_restore(BinRestore { name, ..request }).await.map_err(text("bin restore --name"))?;
    if verb != Verb::BinClosed && read(daemon, "again").await? != BYTE {
        return Err("what came back shows something else".to_owned());
    }
    remove(daemon, "again", !verb.in_place()).await?;
    remove(daemon, verb.subject(), true).await
}

fn check_empty(world: &SimWorld, verb: Verb) -> Outcome<()> {
    let list = |path: &str| world.list(path, sim::View::Current).unwrap_or_default();
    let mut left = list(DATASTORE);
    left.retain(|name| !(verb == Verb::Forget && name == "web/"));
    if !list("/ds/.unstun/bin").is_empty() {
        return Err(format!("the bin has {:?}", list("/ds/.unstun/bin")));
    }
    if left != [".unstun/", "store.unstun"] || !list("/ds/.unstun/vms").is_empty() {
        return Err(format!("what is left: {left:?}, {:?}", list("/ds/.unstun/vms")));
    }
    let foreign = list(FOREIGN);
    match foreign.iter().any(|name| name == "esx.vmx") && !foreign.iter().any(|name| name == ".unstun/") {
        true => Ok(()),
        false => Err(format!("{FOREIGN} has {foreign:?}")),
    }
}

/// Cuts a verb until it completes before a cut strikes; returns the number of cuts.
fn campaign(verb: Verb, stride: u64, defect: Option<Defect>) -> Outcome<u64> {
    sweep(verb as u64, stride, EVENTS, |nth, rng| {
        let again = rng.coin().then(|| rng.between(1, RECOVERY_EVENTS));
        let trouble = *rng.pick(&Trouble::ALL).expect("some");
        let plan = Plan { verb, nth, trouble, again, seed: rng.u64() };
        run(plan, defect).map_err(|e| format!("{plan:?}: {e}"))
    })
}

/// Causes a trouble at every `stride`th event of a verb until the verb completes before one strikes. Returns the number
/// of troubles. `run` returns whether its trouble, at that event, struck.
///
/// # Errors
/// The error of `run`, or that the verb has more than `events_max` events.
pub(super) fn sweep(
    salt: u64,
    stride: u64,
    events_max: u64,
    mut run: impl FnMut(u64, &mut Rng) -> Outcome<bool>,
) -> Outcome<u64> {
    let seed = setting("CRASH_SEED").unwrap_or(1);
    let replay = |e| format!("{e}\n  replay: CRASH_SEED={seed} CRASH_STRIDE={stride}");
    let mut rng = Rng::new(seed ^ salt);
    let mut nth = rng.between(1, stride);
    let mut cuts = 0;
    while nth < events_max {
        if !run(nth, &mut rng).map_err(replay)? {
            return Ok(cuts);
        }
        cuts += 1;
        nth += stride;
    }
    Err(replay(format!("the verb has more than {events_max} events")))
}

/// Runs all campaigns, one case per core, and returns the total number of cuts.
pub(super) fn all_cuts<C: Copy + Debug + Send + Sync>(
    cases: &[C],
    campaign: impl Fn(C) -> Outcome<u64> + Sync,
) -> u64 {
    let results = std::sync::Mutex::new(Vec::new());
    on_all_cores(|n| {
        let Some(case) = cases.get(n as usize) else { return false };
        let result = campaign(*case);
        results.lock().expect("no panic").push((*case, result));
        true
    });
    let results = results.into_inner().expect("no panic");
    let failures: Vec<_> = results.iter().filter_map(|(_, result)| result.clone().err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for (case, cuts) in &results {
        println!("{case:?}: {cuts:?} cuts");
    }
    results.into_iter().flat_map(|(_, result)| result).sum()
}

#[test]
fn a_verb_that_was_cut_off_has_happened_or_has_not() {
    let stride = setting("CRASH_STRIDE").unwrap_or(STRIDE);
    let all = all_cuts(&VERBS, |verb| campaign(verb, stride, None));
    assert!(all * stride > 1000, "{all} cuts, with a stride of {stride}: nothing was cut");
}

#[test]
fn planted_defects_are_found() {
    for (defect, verb) in [
        (Defect::RecordLate, Verb::CreateFiles),
        (Defect::WholeEarly, Verb::CloneFiles),
        (Defect::ForgetRemoval, Verb::RemoveFiles),
        (Defect::ForgetRemoval, Verb::RemoveNative),
        (Defect::ForgetRemoval, Verb::EvictFiles),
        (Defect::BinLate, Verb::BinFiles),
        (Defect::BinLate, Verb::BinNative),
    ] {
        let found = campaign(verb, 3, Some(defect));
        assert!(found.is_err(), "{defect:?} in {verb:?}: {found:?} cuts, and it was not found");
    }
}
