//! A simulated store of objects: requests take effect in any order, fail, lose their answers or arrive late, and lists are
//! old. The executor lets tasks run until all wait, and then carries out one request that the seed chooses.

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use blk::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use repo::{Listed, Objects, Pending, Put};

/// Mutations by which a list can be old.
const STALE_MAX: u64 = 40;

/// Random numbers of a seed (SplitMix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// What a store does that it must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// A creation replaces an entry of the log that was created shortly before.
    Replaces,
    /// A pack is there and disappears later.
    LosesPacks,
    /// A pruner's entries do not reach the log, and it removes what it would remove after them.
    UnseenSweeps,
}

/// How often requests fail: one in so many; 0 for never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    pub refused: u64,
    pub unanswered: u64,
    pub stale_lists: u64,
}

#[derive(Clone)]
enum Request {
    Get(String, Option<Range<u64>>),
    Put(String, Bytes),
    List(String),
    Size(String),
    Delete(String),
}

enum Answer {
    Body(Bytes),
    Put(Put),
    List(Vec<Listed>),
    Size(u64),
    Done,
}

pub(crate) struct State {
    pub random: Random,
    pub faults: Faults,
    pub defect: Defect,
    objects: BTreeMap<String, Bytes>,
    /// What each mutation changed: the name, and the length before.
    changes: Vec<(String, Option<u64>)>,
    waiting: BTreeMap<u64, Request>,
    answers: BTreeMap<u64, Result<Answer>>,
    /// Wakers of the callers.
    wakers: BTreeMap<u64, Waker>,
    /// Requests whose caller has gone.
    dropped: Vec<u64>,
    next: u64,
    pub carried_out: u64,
}

/// A store, as one client sees it.
#[derive(Clone)]
pub(crate) struct World {
    pub state: Arc<Mutex<State>>,
    /// Entries of the log that this client believes in and that are not there.
    unseen: Option<Arc<Mutex<BTreeMap<String, Bytes>>>>,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults, defect: Defect) -> World {
        let state = State {
            random: Random(seed),
            faults,
            defect,
            objects: BTreeMap::new(),
            changes: Vec::new(),
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
            wakers: BTreeMap::new(),
            dropped: Vec::new(),
            next: 0,
            carried_out: 0,
        };
        World { state: Arc::new(Mutex::new(state)), unseen: None }
    }

    /// Returns the store as a pruner sees it: with the defect `UnseenSweeps`, its entries are its own.
    pub(crate) fn for_pruner(&self) -> World {
        let is_planted = self.state.lock().unwrap().defect == Defect::UnseenSweeps;
        World { state: self.state.clone(), unseen: is_planted.then(Arc::default) }
    }

    fn ask(&self, request: Request) -> Asked {
        let mut state = self.state.lock().unwrap();
        let id = state.next;
        state.next += 1;
        state.waiting.insert(id, request);
        Asked { state: self.state.clone(), id }
    }
}

struct Asked {
    state: Arc<Mutex<State>>,
    id: u64,
}

impl Future for Asked {
    type Output = Result<Answer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Answer>> {
        let mut state = self.state.lock().unwrap();
        if let Some(answer) = state.answers.remove(&self.id) {
            return Poll::Ready(answer);
        }
        state.wakers.insert(self.id, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap();
        if state.waiting.contains_key(&self.id) {
            state.dropped.push(self.id);
        }
    }
}

impl State {
    /// Forgets how objects were before; lists show at least what is there now.
    pub(crate) fn settle(&mut self) {
        self.changes.clear();
    }

    /// Carries out one of the waiting requests. Returns false if there is none.
    fn step(&mut self) -> bool {
        let count = self.waiting.len() as u64;
        if count == 0 {
            return false;
        }
        let chosen = self.random.below(count) as usize;
        let id = *self.waiting.keys().nth(chosen).unwrap();
        let request = self.waiting.remove(&id).unwrap();
        self.carried_out += 1;
        let passing = || Error::new(ErrorKind::Io, "store", "503");
        if let Some(waker) = self.wakers.remove(&id) {
            waker.wake();
        }
        if self.random.one_in(self.faults.refused) {
            self.answers.insert(id, Err(passing()));
            return true;
        }
        let answer = self.carry_out(request);
        let lost = self.random.one_in(self.faults.unanswered);
        if !self.dropped.contains(&id) {
            self.answers.insert(id, if lost { Err(passing()) } else { answer });
        }
        true
    }

    fn carry_out(&mut self, request: Request) -> Result<Answer> {
        let missing = |name: &str| Error::not_found(name, "404");
        match request {
            Request::Get(name, range) => {
                let body = self.objects.get(&name).ok_or_else(|| missing(&name))?;
                Ok(Answer::Body(match range {
                    Some(range) if range.end as usize <= body.len() => {
                        body.slice(range.start as usize..range.end as usize)
                    }
                    Some(_) => return Err(Error::invalid(name, "416")),
                    None => body.clone(),
                }))
            }
            Request::Put(name, body) => {
                let may_replace =
                    self.defect == Defect::Replaces && name.starts_with("log/") && self.random.one_in(3);
                if self.objects.contains_key(&name) && !may_replace {
                    return Ok(Answer::Put(Put::Exists));
                }
                let before = self.objects.insert(name.clone(), body);
                self.changes.push((name, before.map(|body| body.len() as u64)));
                if self.defect == Defect::LosesPacks && self.random.one_in(20) {
                    let pack = self.objects.keys().find(|name| name.starts_with("packs/")).cloned();
                    pack.and_then(|name| self.objects.remove(&name));
                }
                Ok(Answer::Put(Put::Created))
            }
            Request::List(prefix) => Ok(Answer::List(self.list(&prefix))),
            Request::Size(name) => self
                .objects
                .get(&name)
                .map(|body| Answer::Size(body.len() as u64))
                .ok_or_else(|| missing(&name)),
            Request::Delete(name) => {
                if let Some(body) = self.objects.remove(&name) {
                    self.changes.push((name, Some(body.len() as u64)));
                }
                Ok(Answer::Done)
            }
        }
    }

    /// Returns a list, which may be as it was some mutations ago.
    fn list(&mut self, prefix: &str) -> Vec<Listed> {
        let mut lengths: BTreeMap<_, _> =
            self.objects.iter().map(|(name, body)| (name.clone(), body.len() as u64)).collect();
        if self.random.one_in(self.faults.stale_lists) {
            let back = self.random.below(STALE_MAX) as usize;
            for (name, before) in self.changes.iter().rev().take(back) {
                match before {
                    Some(bytes) => drop(lengths.insert(name.clone(), *bytes)),
                    None => drop(lengths.remove(name)),
                }
            }
        }
        let matching = lengths.into_iter().filter(|(name, _)| name.starts_with(prefix));
        matching.map(|(name, bytes)| Listed { name, bytes }).collect()
    }
}

impl Objects for World {
    fn place(&self) -> &'static str {
        "store"
    }

    fn get(&self, name: &str) -> Pending<Bytes> {
        let own = self.unseen.as_ref().and_then(|unseen| unseen.lock().unwrap().get(name).cloned());
        if let Some(body) = own {
            return async { Ok(body) }.boxed();
        }
        let asked = self.ask(Request::Get(name.into(), None));
        async { asked.await.map(|answer| answer.body()) }.boxed()
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Pending<Bytes> {
        let asked = self.ask(Request::Get(name.into(), Some(range)));
        async { asked.await.map(|answer| answer.body()) }.boxed()
    }

    fn put_new(&self, name: &str, body: Bytes) -> Pending<Put> {
        if let Some(unseen) = self.unseen.as_ref().filter(|_| name.starts_with("log/")) {
            unseen.lock().unwrap().insert(name.into(), body);
            return async { Ok(Put::Created) }.boxed();
        }
        let asked = self.ask(Request::Put(name.into(), body));
        async {
            match asked.await? {
                Answer::Put(put) => Ok(put),
                _ => unreachable!("the answer of another request"),
            }
        }
        .boxed()
    }

    fn list(&self, prefix: &str) -> Pending<Vec<Listed>> {
        let asked = self.ask(Request::List(prefix.into()));
        async {
            match asked.await? {
                Answer::List(listed) => Ok(listed),
                _ => unreachable!("the answer of another request"),
            }
        }
        .boxed()
    }

    fn size(&self, name: &str) -> Pending<u64> {
        let asked = self.ask(Request::Size(name.into()));
        async {
            match asked.await? {
                Answer::Size(bytes) => Ok(bytes),
                _ => unreachable!("the answer of another request"),
            }
        }
        .boxed()
    }

    fn delete(&self, name: &str) -> Pending<()> {
        let asked = self.ask(Request::Delete(name.into()));
        async { asked.await.map(drop) }.boxed()
    }
}

impl Answer {
    fn body(self) -> Bytes {
        match self {
            Answer::Body(body) => body,
            _ => unreachable!("the answer of another request"),
        }
    }
}

/// Runs tasks until all have ended. `cut` is called before each request with the number of those that were carried out,
/// and returns the tasks that end there.
pub(crate) fn run(
    world: &World,
    tasks: Vec<LocalBoxFuture<'static, ()>>,
    mut cut: impl FnMut(&mut Random) -> Option<usize>,
) {
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        for task in &mut tasks {
            if task.as_mut().is_some_and(|running| running.as_mut().poll(&mut context).is_ready()) {
                *task = None;
            }
        }
        let running = tasks.iter().any(Option::is_some);
        let ended = cut(&mut world.state.lock().unwrap().random);
        if let Some(task) = ended.and_then(|n| tasks.get_mut(n)) {
            // Its requests under way are still carried out.
            *task = None;
        }
        let progressed = world.state.lock().unwrap().step();
        if !running && !progressed {
            return;
        }
        let all_done = !tasks.iter().any(Option::is_some);
        assert!(progressed || all_done, "tasks wait for no request");
    }
}

/// Runs one task, without faults.
pub(crate) fn run_quietly<T: 'static>(world: &World, task: impl Future<Output = T> + 'static) -> T {
    world.state.lock().unwrap().faults = Faults { refused: 0, unanswered: 0, stale_lists: 0 };
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let task = async move { *slot.lock().unwrap() = Some(task.await) }.boxed_local();
    run(world, vec![task], |_| None);
    result.lock().unwrap().take().expect("the task has ended")
}
