//! A migration of QEMU's into a stream that this program stores: the guest runs on until the rest of its memory is little,
//! then stands still until the stream has ended, and runs on. A guest with emulated processors stands still from the start.
//!
//! Source: "QEMU QMP Reference Manual", "Migration". A migration that pauses before the switchover stops the guest and ends
//! its I/O; the instant of the memory and that of the disks are then the same.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::lines::NO_ANSWER;
use super::monitor::Monitor;

/// Time for the answer to a command, which QEMU gives at once unless it is stuck.
const ANSWER: Duration = Duration::from_secs(10);
/// Interval at which the progress is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Time without progress after which the migration is given up: while the guest runs, and while it stands still.
const STALLED: Duration = Duration::from_secs(60);
const STALLED_STOPPED: Duration = Duration::from_secs(10);
/// QEMU's own default.
const BANDWIDTH_BYTES_S_DEFAULT: u64 = 128 << 20;
/// State of a guest whose migration QEMU is putting away, and the interval at which it is looked at then.
const FINISHING: &str = "finish-migrate";
const FINISHING_LOOK: Duration = Duration::from_millis(5);
/// Name of the stream's descriptor in QEMU.
const STREAM: &str = "unstun-memory";
/// The bandwidth is that of the stream's reader.
const BANDWIDTH_BYTES_S: u64 = 64 << 30;
/// Time for which the guest may stand still in the ordinary case.
const DOWNTIME_MS: u64 = 300;
/// QEMU's own maximum: the guest stands still for what is left, whatever it is.
const DOWNTIME_MS_MAX: u64 = 2_000_000;
/// Rounds over the changed memory, and multiples of the memory in the stream, after which the guest stands still for the
/// rest: it changes its memory faster than the rest becomes less.
const ROUNDS_MAX: u64 = 8;
const MULTIPLE_MAX: u64 = 2;
/// Capabilities that are on. All others are off: some leave memory out of the stream, or change its form.
const CAPABILITIES: [&str; 2] = ["events", "pause-before-switchover"];

/// Variable with which an emulated guest runs while its memory is saved, as one of KVM's does, for tests.
const RUNS_VARIABLE: &str = "UNSTUN_TEST_EMULATED_RUNS";

/// A migration under way, and what QEMU's settings were before.
pub(super) struct Migration {
    pub monitor: Monitor,
    pub ram_bytes: u64,
    /// Whether the guest is paused before its memory is saved. QEMU's emulation of processors (TCG) loses track of memory that
    /// they change meanwhile, and the guest that is resumed would have old content there (QEMU before 9.0, which has commit
    /// 03bfc2188f, "physmem: Fix migration dirty bitmap coherency with TCG memory access"; its author knew of further races).
    pub pauses_first: bool,
    capabilities: Vec<(String, bool)>,
    parameters: Map<String, Value>,
    /// QEMU's times of the guest's stop and of its resumption, in microseconds.
    stopped: Option<u64>,
    resumed: Option<u64>,
    sent_bytes: u64,
    moved: Instant,
    hurries: bool,
}

impl Migration {
    /// Checks that the guest runs and that nothing keeps its memory from being saved. Changes nothing.
    pub(super) fn prepare(mut monitor: Monitor) -> Result<Migration, String> {
        let until = Instant::now() + ANSWER;
        let status = status(&mut monitor, until)?;
        if status != "running" {
            return Err(format!("the guest is {status:?}, expected a guest that runs"));
        }
        let migration = monitor.call("query-migrate", json!({}), until)?;
        if let Some(reason) = migration["blocked-reasons"][0].as_str() {
            return Err(format!("QEMU cannot save this machine's memory: {reason}"));
        }
        if let Some(state) = migration["status"].as_str().filter(|state| !has_ended(state)) {
            return Err(format!("another migration of the guest is under way: {state}"));
        }
        // Of the other accelerators nothing is known.
        let kvm = monitor.call("query-kvm", json!({}), until)?;
        let pauses_first = kvm["enabled"] != json!(true) && std::env::var_os(RUNS_VARIABLE).is_none();
        let memory = monitor.call("query-memory-size-summary", json!({}), until)?;
        let bytes = |field: &str| memory[field].as_u64().unwrap_or_default();
        let ram_bytes = bytes("base-memory") + bytes("plugged-memory");
        if ram_bytes == 0 {
            return Err(format!(
                "query-memory-size-summary: found {memory}, expected the size of the memory"
            ));
        }
        Ok(Migration {
            monitor,
            ram_bytes,
            pauses_first,
            capabilities: Vec::new(),
            parameters: Map::new(),
            stopped: None,
            resumed: None,
            sent_bytes: 0,
            moved: Instant::now(),
            hurries: false,
        })
    }

    /// Starts the migration into `stream`.
    pub(super) fn start(&mut self, stream: &UnixStream) -> Result<(), String> {
        let until = Instant::now() + ANSWER;
        self.set_capabilities(until)?;
        let all = self.monitor.call("query-migrate-parameters", json!({}), until)?;
        let names = ["max-bandwidth", "downtime-limit"];
        self.parameters = names.iter().map(|name| ((*name).to_owned(), all[*name].clone())).collect();
        let wanted = json!({"max-bandwidth": BANDWIDTH_BYTES_S, "downtime-limit": DOWNTIME_MS});
        self.monitor.call("migrate-set-parameters", wanted, until)?;
        self.monitor.give(STREAM, stream.as_fd(), until)?;
        if self.pauses_first {
            self.monitor.call("stop", json!({}), until)?;
        }
        self.monitor.call("migrate", json!({"uri": format!("fd:{STREAM}")}), until)?;
        self.moved = Instant::now();
        Ok(())
    }

    fn set_capabilities(&mut self, until: Instant) -> Result<(), String> {
        let all = self.monitor.call("query-migrate-capabilities", json!({}), until)?;
        let known: Vec<(String, bool)> =
            all.as_array().into_iter().flatten().filter_map(named_state).collect();
        for name in CAPABILITIES {
            if !known.iter().any(|(known, _)| known == name) {
                let version = &self.monitor.version;
                return Err(format!("QEMU {version} has no {name}; expected QEMU 2.11 or later"));
            }
        }
        let is_wanted = |name: &String| CAPABILITIES.contains(&name.as_str());
        let differ = known.into_iter().filter(|(name, on)| *on != is_wanted(name));
        let before: Vec<(String, bool)> = differ.collect();
        let wanted = before.iter().map(|(name, on)| (name.clone(), !on)).collect::<Vec<_>>();
        set_capabilities(&mut self.monitor, &wanted, until)?;
        self.capabilities = before;
        Ok(())
    }

    /// Waits until the guest stands still and all its I/O has ended.
    pub(super) fn until_stopped(&mut self) -> Result<(), String> {
        self.until("pre-switchover")
    }

    /// Lets the rest of the memory into the stream, and then the guest run on. Returns for how long it stood still.
    pub(super) fn complete(&mut self) -> Result<u64, String> {
        let until = Instant::now() + ANSWER;
        self.monitor.call("migrate-continue", json!({"state": "pre-switchover"}), until)?;
        self.moved = Instant::now();
        self.until("completed")?;
        // QEMU refuses to go on until it has put the migration away.
        let until = Instant::now() + ANSWER;
        while status(&mut self.monitor, until)? == FINISHING {
            self.next_state(Instant::now() + FINISHING_LOOK)?;
        }
        self.monitor.call("cont", json!({}), until)?;
        // It runs. Its time is known from the event, which comes before the answer.
        while self.resumed.is_none() && Instant::now() < until {
            self.next_state(until)?;
        }
        let (stopped, resumed) = (self.stopped.unwrap_or_default(), self.resumed.unwrap_or_default());
        Ok(resumed.saturating_sub(stopped))
    }

    /// Ends the migration and lets the guest run on.
    pub(super) fn run_on(&mut self, until: Instant) -> Result<(), String> {
        run_on(&mut self.monitor, self.pauses_first, until)
    }

    /// Returns QEMU's settings to what they were. They do not matter to the guest, so a failure is no error.
    pub(super) fn restore_settings(&mut self) {
        let until = Instant::now() + ANSWER;
        let _ = set_capabilities(&mut self.monitor, &self.capabilities, until);
        let parameters = Value::Object(std::mem::take(&mut self.parameters));
        let _ = self.monitor.call("migrate-set-parameters", parameters, until);
    }

    /// Waits until the migration is in the state `wanted`.
    fn until(&mut self, wanted: &str) -> Result<(), String> {
        loop {
            match self.next_state(Instant::now() + LOOK)? {
                Some(state) if state == wanted => return Ok(()),
                Some(state) if has_ended(&state) => return Err(self.why_ended(&state)),
                Some(_) => {}
                None => self.look()?,
            }
        }
    }

    /// Returns the migration's next state; None if there is none in time.
    fn next_state(&mut self, until: Instant) -> Result<Option<String>, String> {
        loop {
            let event = match self.monitor.event(until) {
                Err(cause) if cause == NO_ANSWER => return Ok(None),
                event => event?,
            };
            match event["event"].as_str() {
                Some("STOP") => self.stopped = Some(time_us(&event)),
                Some("RESUME") => {
                    self.resumed = Some(time_us(&event));
                    return Ok(None);
                }
                Some("MIGRATION") => return Ok(event["data"]["status"].as_str().map(str::to_owned)),
                Some("SHUTDOWN") => return Err("the guest was powered off".to_owned()),
                _ => {}
            }
        }
    }

    /// Looks at the progress: fails if there is none for long, and ends the rounds where they do not help.
    fn look(&mut self) -> Result<(), String> {
        let until = Instant::now() + ANSWER;
        let migration = self.monitor.call("query-migrate", json!({}), until)?;
        let ram = &migration["ram"];
        let sent_bytes = ram["transferred"].as_u64().unwrap_or_default();
        if sent_bytes != self.sent_bytes {
            (self.sent_bytes, self.moved) = (sent_bytes, Instant::now());
        }
        let limit = if self.stopped.is_some() { STALLED_STOPPED } else { STALLED };
        if self.moved.elapsed() > limit {
            let state = migration["status"].as_str().unwrap_or("unknown");
            return Err(format!("no progress for {} s; the migration is {state}", limit.as_secs()));
        }
        let rounds = ram["dirty-sync-count"].as_u64().unwrap_or_default();
        if !self.hurries && (rounds > ROUNDS_MAX || sent_bytes > MULTIPLE_MAX * self.ram_bytes) {
            self.monitor.call("migrate-set-parameters", json!({"downtime-limit": DOWNTIME_MS_MAX}), until)?;
            self.hurries = true;
        }
        Ok(())
    }

    fn why_ended(&mut self, state: &str) -> String {
        let migration = self.monitor.call("query-migrate", json!({}), Instant::now() + ANSWER);
        let cause = migration.ok().and_then(|migration| migration["error-desc"].as_str().map(str::to_owned));
        let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
        format!("QEMU's migration has {state}{cause}")
    }
}

/// Ends a migration that may be under way and lets the guest run on; `paused` says that it may have been paused for that. A
/// guest that stands still for another reason stays so.
fn run_on(monitor: &mut Monitor, paused: bool, until: Instant) -> Result<(), String> {
    loop {
        let migration = monitor.call("query-migrate", json!({}), until)?;
        match migration["status"].as_str() {
            Some("cancelling") => {}
            Some(state) if !has_ended(state) => drop(monitor.call("migrate_cancel", json!({}), until)?),
            _ => break,
        }
        // QEMU says when the state changes; where it does not, the next look finds out.
        match monitor.event((Instant::now() + LOOK).min(until)) {
            Err(cause) if cause == NO_ANSWER && Instant::now() < until => {}
            event => drop(event?),
        }
    }
    while status(monitor, until)? == FINISHING {
        match monitor.event((Instant::now() + FINISHING_LOOK).min(until)) {
            Err(cause) if cause == NO_ANSWER && Instant::now() < until => {}
            event => drop(event?),
        }
    }
    match status(monitor, until)?.as_str() {
        "paused" if !paused => Ok(()),
        "postmigrate" | "paused" => monitor.call("cont", json!({}), until).map(drop),
        _ => Ok(()),
    }
}

/// Does the same for a guest that a daemon left when it died, and returns QEMU's settings to its own defaults: what they were
/// is not known any more.
pub(super) fn release(monitor: &mut Monitor, paused: bool, until: Instant) -> Result<(), String> {
    run_on(monitor, paused, until)?;
    let off = CAPABILITIES.map(|name| (name.to_owned(), false));
    let _ = set_capabilities(monitor, &off, until);
    let default = json!({"max-bandwidth": BANDWIDTH_BYTES_S_DEFAULT, "downtime-limit": DOWNTIME_MS});
    let _ = monitor.call("migrate-set-parameters", default, until);
    Ok(())
}

fn status(monitor: &mut Monitor, until: Instant) -> Result<String, String> {
    let answer = monitor.call("query-status", json!({}), until)?;
    let status = answer["status"].as_str().map(str::to_owned);
    status.ok_or_else(|| format!("query-status: found {answer}, expected a status"))
}

fn has_ended(state: &str) -> bool {
    ["none", "completed", "failed", "cancelled"].contains(&state)
}

fn named_state(capability: &Value) -> Option<(String, bool)> {
    Some((capability["capability"].as_str()?.to_owned(), capability["state"].as_bool()?))
}

fn set_capabilities(monitor: &mut Monitor, wanted: &[(String, bool)], until: Instant) -> Result<(), String> {
    let list: Vec<Value> = wanted.iter().map(|(name, on)| json!({"capability": name, "state": on})).collect();
    monitor.call("migrate-set-capabilities", json!({"capabilities": list}), until).map(drop)
}

/// Returns the time of an event, in microseconds.
fn time_us(event: &Value) -> u64 {
    let part = |name: &str| event["timestamp"][name].as_u64().unwrap_or_default();
    part("seconds") * 1_000_000 + part("microseconds")
}
