//! Small files in the host's memory: they outlive the process that wrote them, and are lost when the host loses power.
//!
//! For writes that were acknowledged and not flushed, only this process has the places of new blocks. A format records
//! these places here too. After a crash of the process, clients reconnect and rely on every acknowledgement. After a
//! loss of power the clients have ended too, or the writes are reported as lost.

use crate::error::Errno;

/// A folder of such files. Calls never wait for a device, so no await separates a change in the process's memory from
/// its record here.
pub trait Memory {
    /// Identifies this boot of the host. Bit 0 is set if clients may outlive the boot, because they run on other hosts.
    /// Never 0, which means "unknown" where the number is stored on a device.
    fn boot(&self) -> u64;

    /// Identifies the machine, with the same number in all of its boots. 0 means unknown.
    fn machine(&self) -> u64;

    /// Returns the content of the file, or None if it does not exist.
    fn read(&self, name: &str) -> Option<Vec<u8>>;

    /// Appends to the file, and creates it if necessary. After an error its content is unknown.
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), Errno>;

    /// Empties the file without removing it.
    fn clear(&self, name: &str) -> Result<(), Errno>;

    /// Removes the file; it may be absent.
    fn remove(&self, name: &str);

    /// Returns all names, in no order.
    fn list(&self) -> Vec<String>;
}

/// The host on which a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostId {
    /// `Memory::boot`, or 0 if the process kept nothing in the host's memory.
    pub boot: u64,
    /// `Memory::machine`.
    pub machine: u64,
}

impl HostId {
    /// Returns the host of `memory`; all zeros without one.
    pub fn of(memory: Option<&dyn Memory>) -> HostId {
        memory.map_or(HostId::default(), |memory| HostId { boot: memory.boot(), machine: memory.machine() })
    }
}

/// Returns whether clients may still run although acknowledged writes are lost. `then` is where the process ran that
/// acknowledged them, `now` where this process runs. Clients of another machine do not end because this machine was
/// restarted.
pub fn clients_may_live(then: HostId, now: HostId) -> bool {
    let remote = then.boot & 1 == 1;
    let same_boot = now.boot == 0 || now.boot | 1 == then.boot | 1;
    let other_machine = then.machine != 0 && then.machine != now.machine;
    then.boot != 0 && (remote || same_boot || other_machine)
}

/// Two files that are filled in turn. Records that a flush has made durable can then be dropped while others are
/// appended.
///
/// Both files exist from `begin` until `end`. If one is missing, records were lost.
pub struct MemoryLog {
    files: [String; 2],
    /// The file that is appended to, and whether each of them has content.
    state: std::cell::Cell<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    kept: bool,
    active: usize,
    bytes: [u64; 2],
}

impl MemoryLog {
    /// Creates a log under `name`. It records nothing before `begin`.
    pub fn new(name: &str) -> MemoryLog {
        MemoryLog { files: [0, 1].map(|n| format!("{name}.{n}")), state: Default::default() }
    }

    /// Returns the content of the log `name` in two parts, either of which may be the older one. None if the log ended
    /// early.
    pub fn read(memory: &dyn Memory, name: &str) -> Option<[Vec<u8>; 2]> {
        let [a, b] = MemoryLog::new(name).files;
        Some([memory.read(&a)?, memory.read(&b)?])
    }

    /// Starts to record. The log is empty.
    pub fn begin(&self, memory: &dyn Memory) {
        self.state.set(State { kept: true, ..State::default() });
        for file in &self.files {
            if memory.append(file, &[]).and_then(|()| memory.clear(file)).is_err() {
                return self.end(memory);
            }
        }
    }

    /// Returns whether the log has everything that was appended.
    pub fn is_kept(&self) -> bool {
        self.state.get().kept
    }

    /// Returns the bytes that both files have together.
    pub fn bytes(&self) -> u64 {
        self.state.get().bytes.iter().sum()
    }

    /// Returns whether the active part is empty, so that `append` must begin with the part's head.
    pub fn is_part_empty(&self) -> bool {
        let state = self.state.get();
        state.bytes[state.active] == 0
    }

    /// Appends `bytes` to the active file. Does nothing if the log does not record. A failure ends the log.
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

    /// Notes the start of a flush that covers everything appended so far. Later records go into the other part, if it
    /// is free.
    pub fn switch(&self) {
        let mut state = self.state.get();
        if state.bytes[1 - state.active] == 0 {
            state.active = 1 - state.active;
            self.state.set(state);
        }
    }

    /// Notes the end of a flush that covers everything appended before the last `switch`.
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

    /// Removes the log. A crash after this loses what was not flushed; the next opening recognises this by the missing
    /// files.
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
