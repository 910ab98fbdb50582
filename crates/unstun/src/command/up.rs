//! `unstun up`: the daemon. The engine runs on its own thread; this one serves the API and waits for a signal.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use api::client::runtime;
use api::error::{Error, ErrorKind, Result};
use api::listen::{self, NbdListen, WebListen};
use api::location::Datastore;
use api::output::Output;
use export::Activity;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

use crate::access::authorize::Access;
use crate::access::syslog::Syslog;
use crate::alarms::Alarms;
use crate::cli::{UpArgs, VERSION};
use crate::command::status;
use crate::console::{ReportFolder, Shown};
use crate::daemon::{self, CoreHandle, Daemon, Subject};
use crate::recorder::Recorder;
use crate::rest::listeners::{self, HEADER_TIME_MAX, Listeners, Web};
use crate::rest::tls::{CertificateFiles, Tls};
use crate::{fatal, log, nbd_tls, notify, rest};

/// Time for which API requests in flight may continue after a signal; then the engine stops regardless.
const API_DRAIN: Duration = Duration::from_secs(2);

pub(super) fn run(named: Option<&Path>, args: &UpArgs, output: Output) -> Result<()> {
    let datastore = Datastore::for_daemon(named, args.create)?;
    listen::check_socket_path(&datastore.api_socket()).map_err(Error::invalid)?;
    check_nbd(args)?;
    let (nbd, nbd_tls) = nbd_addresses(&datastore, args)?;
    fatal::end_process_on_panic();
    info!("unstun {} starts, process {}", *VERSION, std::process::id());
    let (name, root) = (datastore.name(), datastore.root().to_path_buf());
    let memory = args.memory;
    let cores = args.cores.unwrap_or_else(|| memory.cores());
    let heartbeats: Vec<_> = (0..cores).map(|_| Arc::new(daemon::Heartbeat::default())).collect();
    let bin = daemon::BinPolicy { hours: args.bin_hours, free_percent: args.bin_free_percent };
    let map_cache_bytes = memory.map_cache_bytes(args.map_cache, cores).map_err(Error::invalid)?;
    let activity = Activity::new(cores);
    let guests_dir = args.guests_dir.clone();
    let place =
        daemon::Place { name, root, map_cache_bytes, memory, bin, nbd, nbd_tls, guests_dir, cores, activity };
    let core = Arc::new(CoreHandle::start(place, heartbeats.clone())?);
    notify::keep_watchdog(heartbeats)?;
    runtime()?.block_on(serve(&datastore, core, args, output))
}

/// Refuses NBD for other hosts, which has neither passwords nor encryption, unless the user accepts that.
fn check_nbd(args: &UpArgs) -> Result<()> {
    match args.nbd.iter().find(|address| address.is_remote()) {
        Some(NbdListen::Tcp(address)) if !args.nbd_insecure && args.nbd_tls_dir.is_none() => {
            Err(Error::invalid(format!(
                "--nbd {address}: every client that reaches this address could read and write every disk, without a password and \
             in clear text; serve it with TLS (--nbd-tls-dir), or 127.0.0.1:{} behind a tunnel, or accept that with \
             --nbd-insecure and keep others out with a firewall",
                address.port()
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the addresses of NBD, with TLS on TCP if the user has named certificates. Other addresses are served even if these
/// cannot be read: a certificate that was renewed wrongly must not keep other guests from their disks.
fn nbd_addresses(
    datastore: &Datastore,
    args: &UpArgs,
) -> Result<(Vec<NbdListen>, Option<export::nbd::TlsSource>)> {
    let mut addresses = args.nbd.clone();
    if addresses.is_empty() {
        addresses.push(datastore.default_nbd()?);
    }
    let Some(folder) = &args.nbd_tls_dir else { return Ok((addresses, None)) };
    let source = nbd_tls::follow(folder);
    let with_tls = |address| match address {
        NbdListen::Tcp(tcp) if source.is_ok() => Some(NbdListen::Tls(tcp)),
        NbdListen::Tcp(tcp) => {
            error!("NBD is not served on {tcp}: its certificates cannot be used");
            None
        }
        other => Some(other),
    };
    addresses = addresses.into_iter().filter_map(with_tls).collect();
    match source {
        Ok(source) => Ok((addresses, Some(source))),
        Err(e) if addresses.is_empty() => Err(e),
        Err(e) => {
            error!("{e}");
            Ok((addresses, None))
        }
    }
}

/// Serves until a signal, then drains, in whatever state the API is.
async fn serve(datastore: &Datastore, core: Arc<CoreHandle>, args: &UpArgs, output: Output) -> Result<()> {
    let served = match listen_api(datastore, &core, args, output).await {
        Ok((listeners, signals)) => serve_until_signal(datastore, args, listeners, &core, signals).await,
        Err(error) => Err(error),
    };
    let drained = core.shutdown().await;
    // A socket that stays is harmless: the next daemon replaces it.
    let _ = std::fs::remove_file(datastore.api_socket());
    let ended = served.and(drained);
    if ended.is_ok() {
        info!("stopped");
    }
    ended
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let install = |kind| signal(kind).map_err(|e| Error::failed(format!("signal handler: {e}")));
        Ok(Self {
            terminate: install(SignalKind::terminate())?,
            interrupt: install(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Listens for API clients. Once this function has printed, every client is served.
async fn listen_api(
    datastore: &Datastore,
    core: &Arc<CoreHandle>,
    args: &UpArgs,
    output: Output,
) -> Result<(Listeners, Signals)> {
    let signals = Signals::new()?;
    let unix = listeners::bind_unix(&datastore.api_socket())?;
    let web = listen_web(&datastore.own_folder(), args).await;
    info!("the API is on {}", datastore.api_socket().display());
    let urls = web.iter().map(Web::url).collect();
    let now = async move |daemon: Rc<Daemon>| {
        daemon.web.replace(urls);
        daemon.status().await
    };
    output.result(&core.ask(Subject::None, now).await?, |now| {
        let api = datastore.api_socket();
        format!("{}socket     {}\nready; Ctrl-C drains and stops", status::describe(now), api.display())
    })?;
    info!("ready");
    notify::ready();
    Ok((Listeners { unix, web }, signals))
}

/// Listens on the addresses for clients with a token. The default one may be in use, by the daemon of another datastore for example. The disks
/// are served without the others too: a certificate that was renewed wrongly must not keep guests from their disks.
async fn listen_web(folder: &Path, args: &UpArgs) -> Vec<Web> {
    let mut all = Vec::new();
    if args.web.is_empty() {
        let address = WebListen::default_address();
        match Web::bind(address, None).await {
            Ok(web) => all.push(web),
            Err(e) => info!("the API is not served on {address}: {e}; --web names another address"),
        }
    }
    for listen in &args.web {
        let (shown, bound) = match listen {
            WebListen::Nowhere => continue,
            WebListen::Tcp(address) => (address.to_string(), bind_web(*address, folder, args).await),
            WebListen::Unix(path) => (
                format!("unix:{}", path.display()),
                Web::bind_unix(path).map_err(|e| Error::failed(e.to_string())),
            ),
        };
        match bound {
            Ok(web) => all.push(web),
            Err(e) => error!("the API is not served on {shown}: {e}"),
        }
    }
    for web in &all {
        info!("the API is on {}", web.shown());
    }
    all
}

async fn bind_web(address: SocketAddr, folder: &Path, args: &UpArgs) -> Result<Web> {
    let tls = match address.ip().is_loopback() {
        true => None,
        false => Some(Tls::open(certificate_files(args).as_ref(), folder, address.ip())?),
    };
    Web::bind(address, tls).await.map_err(|e| Error::failed(e.to_string()))
}

fn certificate_files(args: &UpArgs) -> Option<CertificateFiles> {
    let (certificate, key) = args.tls_cert.clone().zip(args.tls_key.clone())?;
    Some(CertificateFiles { certificate, key })
}

async fn serve_until_signal(
    datastore: &Datastore,
    args: &UpArgs,
    listeners: Listeners,
    core: &Arc<CoreHandle>,
    mut signals: Signals,
) -> Result<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    // The server must stop whether the message was sent or the sender was dropped.
    let stopped = async move { drop(stopped.await) };
    let syslog = Syslog::chosen(args.syslog.as_ref(), log::is_journal());
    let access = Arc::new(Access::start(core, datastore, syslog).await);
    let (end, ends) = watch::channel(false);
    let recorder = Recorder::start(core, &datastore.own_folder(), !args.no_recorder);
    let recording = tokio::spawn(recorder.clone().keep(ends.clone()));
    let alarms = Alarms::start(core, datastore.root(), args.alarms_dir.clone()).await;
    rest::complete_import(&access, &alarms).await;
    let every = Duration::from_secs(args.alarms_every);
    tokio::spawn(alarms.clone().keep(every, recorder.clone(), ends.clone()));
    let reports = args.lab_reports.as_deref().map(ReportFolder::new);
    let router = rest::router(access, alarms, Shown { recorder, reports, ends });
    let server = tokio::spawn(listeners::serve(listeners, router, HEADER_TIME_MAX, stopped));
    signals.next().await;
    notify::stopping();
    info!("draining; a second signal stops at once");
    tokio::spawn(async move {
        signals.next().await;
        warn!("stopped before draining ended; the next start recovers");
        std::process::exit(i32::from(ErrorKind::Failed.exit_code()));
    });
    let _ = stop.send(());
    end.send_replace(true);
    // What was recorded last is written.
    let _ = tokio::time::timeout(API_DRAIN, recording).await;
    match tokio::time::timeout(API_DRAIN, server).await {
        Ok(Ok(result)) => result,
        Ok(Err(join)) => Err(Error::failed(format!("API server: {join}"))),
        Err(_) => Ok(()),
    }
}
