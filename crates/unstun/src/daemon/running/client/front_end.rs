//! The NBD front end as the daemon runs it, and what the log shows of its connections and of failed requests.

use std::rc::Rc;

use blk::ErrorKind;
use export::nbd::proto::NbdErrno;
use export::nbd::{Failure, FrontEnd, Limits, Mishap, Observer};
use tracing::{debug, info, warn};

use crate::log::LineLimit;
use crate::memory::Memory;

/// Maximum number of log lines per second about connections that are refused or break.
const MISHAP_LINES_MAX: u32 = 4;
/// Maximum number of log lines per second about failed requests. A guest whose disk fails repeats them.
const FAILURE_LINES_MAX: u32 = 2;

pub(crate) fn front_end(memory: Memory, connections_max: usize) -> Rc<FrontEnd> {
    let limits = Limits { memory_bytes: memory.clients_bytes(), connections_max, ..Limits::default() };
    let log = FrontEndLog {
        mishaps: LineLimit::new(MISHAP_LINES_MAX),
        failures: LineLimit::new(FAILURE_LINES_MAX),
    };
    FrontEnd::observed(limits, Rc::new(log))
}

struct FrontEndLog {
    mishaps: LineLimit,
    failures: LineLimit,
}

impl Observer for FrontEndLog {
    fn mishap(&self, mishap: &Mishap) {
        let Some(left_out) = self.mishaps.admit() else { return };
        let Mishap { peer, export, kind, cause } = mishap;
        let at = if export.is_empty() { String::new() } else { format!(" at {export}") };
        match kind {
            ErrorKind::Refused => warn!("{peer} is refused{at}: {cause}{left_out}"),
            // A client that is killed breaks its connection.
            ErrorKind::Io => info!("NBD of {peer}{at}: {cause}{left_out}"),
            _ => warn!("NBD of {peer}{at}: {cause}{left_out}"),
        }
    }

    fn failure(&self, peer: &str, export: &str, failure: &Failure) {
        let message = &failure.message;
        // The log shows once that a client may not write, and that a connection ends. A client tries fast zeros.
        if matches!(failure.errno, NbdErrno::Perm | NbdErrno::Shutdown | NbdErrno::NotSupported) {
            return debug!("a request of {peer} to {export} failed: {message}");
        }
        if let Some(left_out) = self.failures.admit() {
            warn!("a request of {peer} to {export} failed: {message}{left_out}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::written;

    fn log() -> FrontEndLog {
        FrontEndLog { mishaps: LineLimit::new(8), failures: LineLimit::new(8) }
    }

    #[test]
    fn a_mishap_has_the_level_of_its_kind() {
        let mishap = |export: &str, kind, cause: &str| {
            log().mishap(&Mishap {
                peer: "pid 7 (nc)".into(),
                export: export.into(),
                kind,
                cause: cause.into(),
            });
        };
        let lines = written(true, "", || {
            mishap("", ErrorKind::Refused, "too many connections");
            mishap("", ErrorKind::Invalid, "no export chosen within 30 s");
            mishap("web/disk0", ErrorKind::Io, "receiving: reset by peer\n");
        });
        let expected = [
            "<4>client: pid 7 (nc) is refused: too many connections",
            "<4>client: NBD of pid 7 (nc): no export chosen within 30 s",
            "<6>client: NBD of pid 7 (nc) at web/disk0: receiving: reset by peer\\n",
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_failed_request_is_a_warning_unless_it_repeats_what_the_client_was_told() {
        let (log, all) = (log(), [NbdErrno::Io, NbdErrno::Perm, NbdErrno::NotSupported, NbdErrno::Shutdown]);
        let fail = || {
            for errno in all {
                log.failure("pid 7 (qemu)", "web/disk0", &Failure { errno, message: "disk0: why".into() });
            }
        };
        let expected = "client: a request of pid 7 (qemu) to web/disk0 failed: disk0: why\n";
        assert_eq!(written(true, "", fail), format!("<4>{expected}"));
        assert_eq!(written(true, "debug", fail).lines().count(), all.len());
    }
}
