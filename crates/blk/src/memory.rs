//! Small files in the host's memory: they outlive the process that wrote them, and end when the host loses its power.
//!
//! Of writes that were answered and not flushed yet, the places of new blocks are known to this process alone. A format
//! keeps these here too. After a crash of the process clients reconnect and rely on every answer that they got. After a
//! loss of power the clients are gone as well, or the writes are reported as lost.

use crate::error::Errno;

/// One folder of such files. Calls never wait for a device, so that a change in the process's memory and its record here
/// have no await between them.
pub trait Memory {
    /// Names this boot of the host, and says in bit 0 whether clients may outlive it because they run on other hosts.
    /// Never 0, which stands for "unknown" where it is kept on a device.
    fn boot(&self) -> u64;

    /// Names the machine, the same in all of its boots. 0: unknown.
    fn machine(&self) -> u64;

    /// The content of the file, or None where there is none.
    fn read(&self, name: &str) -> Option<Vec<u8>>;

    /// Appends to the file, which is made where there is none. After an error its content is unknown.
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), Errno>;

    /// Empties the file, which stays.
    fn clear(&self, name: &str) -> Result<(), Errno>;

    /// Removes the file; it may be absent.
    fn remove(&self, name: &str);

    /// All names, in no order.
    fn list(&self) -> Vec<String>;
}

/// Which host a process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostId {
    /// `Memory::boot`, or 0 where the process kept nothing in the host's memory.
    pub boot: u64,
    /// `Memory::machine`.
    pub machine: u64,
}

impl HostId {
    /// Returns the host that `memory` is on; all zeros without one.
    pub fn of(memory: Option<&dyn Memory>) -> HostId {
        memory.map_or(HostId::default(), |memory| HostId { boot: memory.boot(), machine: memory.machine() })
    }
}

/// Whether clients may run on although writes that they were answered are lost: `then` is where the process ran that
/// answered them, `now` where this one does. The clients of another machine did not end because this one was started.
pub fn clients_may_live(then: HostId, now: HostId) -> bool {
    let remote = then.boot & 1 == 1;
    let same_boot = now.boot == 0 || now.boot | 1 == then.boot | 1;
    let other_machine = then.machine != 0 && then.machine != now.machine;
    then.boot != 0 && (remote || same_boot || other_machine)
}

/// Two files that are filled in turns, so that what a flush has made durable can be let go while more is appended.
///
/// Both exist from `begin` until `end`: where one is missing something was lost.
pub struct MemoryLog {
    files: [String; 2],
    /// The one that is appended to, and whether each has anything.
    state: std::cell::Cell<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    kept: bool,
    active: usize,
    bytes: [u64; 2],
}

impl MemoryLog {
    /// A log under `name`, not kept before `begin`.
    pub fn new(name: &str) -> MemoryLog {
        MemoryLog { files: [0, 1].map(|n| format!("{name}.{n}")), state: Default::default() }
    }

    /// What a log under `name` holds, in two parts of which either may be the older; None where it was not kept to its end.
    pub fn read(memory: &dyn Memory, name: &str) -> Option<[Vec<u8>; 2]> {
        let [a, b] = MemoryLog::new(name).files;
        Some([memory.read(&a)?, memory.read(&b)?])
    }

    /// From here on the log is kept; it is empty.
    pub fn begin(&self, memory: &dyn Memory) {
        self.state.set(State { kept: true, ..State::default() });
        for file in &self.files {
            if memory.append(file, &[]).and_then(|()| memory.clear(file)).is_err() {
                return self.end(memory);
            }
        }
    }

    /// Whether everything that was appended is there.
    pub fn is_kept(&self) -> bool {
        self.state.get().kept
    }

    /// Returns the bytes that both files have together.
    pub fn bytes(&self) -> u64 {
        self.state.get().bytes.iter().sum()
    }

    /// Whether the next part has nothing yet, so that `append` has to be given its head too.
    pub fn is_part_empty(&self) -> bool {
        let state = self.state.get();
        state.bytes[state.active] == 0
    }

    /// Appends `bytes` to the active file. Does nothing where the log is not kept; a failure ends the log.
    pub fn append(&self, memory: &dyn Memory, bytes: &[u8]) {
        let mut state = self.state.get();
        if !state.kept {
            return;
        }
        state.bytes[state.active] += bytes.len() as u64;
        self.state.set(state);
        if memory.append(&self.files[state.active], bytes).is_err() {
            self.end(memory);
        }
    }

    /// A flush begins that covers everything appended so far: what comes now goes into the other part, if that is free.
    pub fn switch(&self) {
        let mut state = self.state.get();
        if state.bytes[1 - state.active] == 0 {
            state.active = 1 - state.active;
            self.state.set(state);
        }
    }

    /// A flush is done that covers everything appended before the last `switch`.
    pub fn settle(&self, memory: &dyn Memory) {
        let mut state = self.state.get();
        let other = 1 - state.active;
        if !state.kept || state.bytes[other] == 0 {
            return;
        }
        state.bytes[other] = 0;
        self.state.set(state);
        if memory.clear(&self.files[other]).is_err() {
            self.end(memory);
        }
    }

    /// Removes the log. A crash after this loses what was not flushed; the next opening tells it by the missing files.
    pub fn end(&self, memory: &dyn Memory) {
        self.state.set(State::default());
        self.files.iter().for_each(|file| memory.remove(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_still_run_in_the_same_boot_or_on_other_hosts() {
        let at = |boot, machine| HostId { boot, machine };
        let (this, before) = (at(0x10, 1), at(0x20, 1));
        assert!(clients_may_live(this, this));
        assert!(clients_may_live(this, at(this.boot | 1, 1)));
        assert!(clients_may_live(at(before.boot | 1, 1), this));
        assert!(!clients_may_live(before, this));
        assert!(clients_may_live(at(before.boot, 2), this), "another machine's clients");
        assert!(!clients_may_live(at(before.boot, 0), this), "of a program that did not name its machine");
        assert!(!clients_may_live(at(0, 2), this));
        assert!(clients_may_live(this, HostId::default()), "the host is unknown");
    }
}
