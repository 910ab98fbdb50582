//! The S3 server versitygw, which keeps objects in a folder. `scripts/setup.sh` builds it for `make test-all`.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::{ACCESS_KEY, BUCKET, SECRET_KEY};

/// Attempts to start the server: another program may take the port first.
const STARTS: usize = 5;

pub(crate) struct Versitygw {
    child: Mutex<Child>,
    pub address: SocketAddr,
    folder: Mutex<Option<tempfile::TempDir>>,
}

impl Versitygw {
    /// Ends the server, and removes what it stored.
    pub(crate) fn stop(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
        drop(self.folder.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Versitygw {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the program, which the set-up puts beside the build; `UNSTUN_VERSITYGW` names another one.
fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("UNSTUN_VERSITYGW") {
        return Some(program.into());
    }
    let build = std::env::current_exe().ok()?.ancestors().nth(3)?.join("versitygw/versitygw");
    build.exists().then_some(build)
}

impl Versitygw {
    /// Starts a server with an empty bucket. None, after a report, if the program is not there.
    pub(crate) fn start() -> Option<Versitygw> {
        let Some(program) = program() else {
            let test = thread::current().name().unwrap_or("main").to_owned();
            let reason = "versitygw is not there; `make test-all` builds it where Go is installed";
            // Unlike `println!`, this is not captured.
            let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {reason}");
            return None;
        };
        let started = (0..STARTS).find_map(|_| Versitygw::start_once(&program));
        Some(started.unwrap_or_else(|| panic!("{} does not start", program.display())))
    }

    #[expect(clippy::disallowed_methods, reason = "a test's timeout is in real time")]
    fn start_once(program: &Path) -> Option<Versitygw> {
        let folder = tempfile::tempdir().unwrap();
        for name in [&*format!("objects/{BUCKET}"), "attributes"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let child = Command::new(program)
            .args(["--quiet", "--access", ACCESS_KEY, "--port", &address.to_string(), "posix", "--sidecar"])
            .args([folder.path().join("attributes"), folder.path().join("objects")])
            .env("ROOT_SECRET_ACCESS_KEY", SECRET_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let server = Versitygw { child: Mutex::new(child), address, folder: Mutex::new(Some(folder)) };
        let started = std::time::Instant::now();
        while TcpStream::connect(address).is_err() {
            if server.child.lock().unwrap().try_wait().unwrap().is_some() {
                return None;
            }
            assert!(started.elapsed().as_secs() < 60, "{} does not listen", program.display());
            thread::yield_now();
        }
        Some(server)
    }
}
