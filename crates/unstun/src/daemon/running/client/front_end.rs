//! The front ends as the daemon runs them, and what the log shows of their connections and of failed requests.

use std::rc::Rc;
use std::sync::Arc;

use blk::ErrorKind;
use export::nbd::proto::NbdErrno;
use export::nbd::{Failure, FrontEnd, Limits, Observer};
use export::{Activity, ConnectionFailure, vhost_user};
use tracing::{debug, info, warn};

use crate::log::LineLimit;
use crate::memory::Memory;

/// Maximum number of log lines per second about connections that are refused or break.
const CONNECTION_LINES_MAX: u32 = 4;
/// Maximum number of log lines per second about failed requests. A guest whose disk fails repeats them.
const REQUEST_LINES_MAX: u32 = 2;

/// Creates the front end of core `own` of `cores`. They divide the memory for clients and the connections of the process.
pub(crate) fn front_end(
    memory: Memory,
    connections_max: usize,
    (own, cores): (usize, usize),
    activity: &Arc<Activity>,
) -> Rc<FrontEnd> {
    let memory_bytes = memory.clients_bytes() / cores as u64;
    let limits = Limits { memory_bytes, connections_max: connections_max / cores, ..Limits::default() };
    let log = FrontEndLog {
        connections: LineLimit::new(CONNECTION_LINES_MAX),
        requests: LineLimit::new(REQUEST_LINES_MAX),
    };
    let front_end = FrontEnd::observed(limits, Rc::new(log));
    front_end.resources().share_activity(activity.clone(), own);
    front_end
}

/// Returns the vhost-user front end, whose clients share memory, turns and limits with those of NBD.
pub(crate) fn vhost_front_end(nbd: &FrontEnd, descriptors_max: u64) -> Rc<vhost_user::FrontEnd> {
    let log = FrontEndLog {
        connections: LineLimit::new(CONNECTION_LINES_MAX),
        requests: LineLimit::new(REQUEST_LINES_MAX),
    };
    vhost_user::FrontEnd::with_descriptors(nbd.resources(), descriptors_max, Rc::new(log))
}

impl vhost_user::Observer for FrontEndLog {
    fn connection_failed(&self, failure: &ConnectionFailure) {
        let Some(left_out) = self.connections.admit() else { return };
        let ConnectionFailure { peer, export, kind, cause } = failure;
        match kind {
            // A client tries again every second, and its first refusal is in the log and among the events.
            ErrorKind::NotFound | ErrorKind::Locked => debug!("{peer} is refused at {export}: {cause}"),
            ErrorKind::Io => info!("vhost-user of {peer} at {export}: {cause}{left_out}"),
            ErrorKind::Refused => warn!("{peer} is refused at {export}: {cause}{left_out}"),
            _ => warn!("vhost-user of {peer} at {export}: {cause}{left_out}"),
        }
    }

    fn request_failed(&self, peer: &str, export: &str, error: &blk::Error) {
        if matches!(error.kind, ErrorKind::Refused | ErrorKind::Locked | ErrorKind::Cancelled) {
            return debug!("a request of {peer} to {export} failed: {error}");
        }
        if let Some(left_out) = self.requests.admit() {
            warn!("a request of {peer} to {export} failed: {error}{left_out}");
        }
    }
}

struct FrontEndLog {
    connections: LineLimit,
    requests: LineLimit,
}

impl Observer for FrontEndLog {
    fn connection_failed(&self, failure: &ConnectionFailure) {
        let Some(left_out) = self.connections.admit() else { return };
        let ConnectionFailure { peer, export, kind, cause } = failure;
        let at = if export.is_empty() { String::new() } else { format!(" at {export}") };
        match kind {
            ErrorKind::Refused => warn!("{peer} is refused{at}: {cause}{left_out}"),
            // A client that is killed breaks its connection.
            ErrorKind::Io => info!("NBD of {peer}{at}: {cause}{left_out}"),
            _ => warn!("NBD of {peer}{at}: {cause}{left_out}"),
        }
    }

    fn request_failed(&self, peer: &str, export: &str, failure: &Failure) {
        let message = &failure.message;
        // The log shows once that a client may not write, and that a connection ends. A client tries fast zeros.
        if matches!(failure.errno, NbdErrno::Perm | NbdErrno::Shutdown | NbdErrno::NotSupported) {
            return debug!("a request of {peer} to {export} failed: {message}");
        }
        if let Some(left_out) = self.requests.admit() {
            warn!("a request of {peer} to {export} failed: {message}{left_out}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::written;

    fn log() -> FrontEndLog {
        FrontEndLog { connections: LineLimit::new(8), requests: LineLimit::new(8) }
    }

    #[test]
    fn a_failed_connection_has_the_level_of_its_kind() {
        let failed = |export: &str, kind, cause: &str| {
            log().connection_failed(&ConnectionFailure {
                peer: "pid 7 (nc)".into(),
                export: export.into(),
                kind,
                cause: cause.into(),
            });
        };
        let lines = written(true, "", || {
            failed("", ErrorKind::Refused, "too many connections");
            failed("", ErrorKind::Invalid, "no export chosen within 30 s");
            failed("web/disk0", ErrorKind::Io, "receiving: reset by peer\n");
        });
        let expected = [
            "<4>client: pid 7 (nc) is refused: too many connections",
            "<4>client: NBD of pid 7 (nc): no export chosen within 30 s",
            "<6>client: NBD of pid 7 (nc) at web/disk0: receiving: reset by peer\\n",
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_failed_request_is_a_warning_unless_the_client_knows_the_reason() {
        let (log, all) = (log(), [NbdErrno::Io, NbdErrno::Perm, NbdErrno::NotSupported, NbdErrno::Shutdown]);
        let fail = || {
            for errno in all {
                log.request_failed(
                    "pid 7 (qemu)",
                    "web/disk0",
                    &Failure { errno, message: "disk0: why".into() },
                );
            }
        };
        let expected = "client: a request of pid 7 (qemu) to web/disk0 failed: disk0: why\n";
        assert_eq!(written(true, "", fail), format!("<4>{expected}"));
        assert_eq!(written(true, "debug", fail).lines().count(), all.len());
    }
}
