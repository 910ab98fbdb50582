//! A panic ends the daemon's process.
//!
//! Without the core's thread, or the one that opens its files, the process would continue with dead disks, and no
//! supervisor would restart it. The next start recovers, and clients with a reconnect delay continue.

use std::panic::PanicHookInfo;

use tracing::error;

/// EX_SOFTWARE of sysexits.h: an internal error. No command uses this exit code for anything else.
pub(crate) const PANIC_EXIT_CODE: i32 = 70;

/// Ends the process on a panic of any thread from here on, with the message in the log. The API's threads are
/// excepted: their runtime answers for a request that panics, and the disks are still served.
pub(crate) fn end_process_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let found = describe(panic);
        if tokio::runtime::Handle::try_current().is_ok() {
            return error!(
                "{found}; a request to the API panicked, and the disks are served. Please report this line"
            );
        }
        error!(
            "{found}; the daemon ends with exit code {PANIC_EXIT_CODE}, and its next start recovers. Please report this \
             line"
        );
        // The exit comes before anything unwinds, so that the content of the host's memory stays as it is.
        std::process::exit(PANIC_EXIT_CODE);
    }));
}

fn describe(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message =
        message.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    format!("internal error in thread {thread} at {place}: {message}")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "UNSTUN_TEST_PANICS";

    #[test]
    fn a_panic_of_the_core_ends_the_process_with_its_reason() {
        if std::env::var_os(CHILD).is_some() {
            crate::log::start(crate::log::Filter::default());
            end_process_on_panic();
            let core =
                std::thread::Builder::new().name("core0".into()).spawn(|| panic!("a broken invariant"));
            let _ = core.unwrap().join();
            // The process has survived; its exit code shows that.
            return;
        }
        let name = "fatal::tests::a_panic_of_the_core_ends_the_process_with_its_reason";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(PANIC_EXIT_CODE), "{said}");
        assert!(said.contains("in thread core0") && said.contains("a broken invariant"), "{said}");
    }
}
