//! A panic ends the daemon's process.
//!
//! Without the core's thread, or the one that opens its files, the process would continue with dead disks, and no
//! supervisor would restart it. The next start recovers, and clients with a reconnect delay continue.

use std::panic::PanicHookInfo;

use crate::log::log;

/// EX_SOFTWARE of sysexits.h: an internal error. No command uses this exit code for anything else.
pub const PANIC_EXIT_CODE: i32 = 70;

/// Ends the process on a panic of any thread from here on, with the message on standard error. The API's threads are
/// excepted: their runtime answers for a request that panics, and the disks are still served.
pub fn end_process_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tokio::runtime::Handle::try_current().is_ok() {
            return report(panic);
        }
        log(describe(panic));
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
    format!(
        "internal error in thread {thread} at {place}: {message}; the daemon ends with exit code {PANIC_EXIT_CODE}, and \
         its next start recovers. Please report this line"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "UNSTUN_TEST_PANICS";

    #[test]
    fn a_panic_of_the_core_ends_the_process_with_its_reason() {
        if std::env::var_os(CHILD).is_some() {
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
