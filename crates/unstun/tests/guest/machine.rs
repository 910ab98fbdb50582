//! QEMU with a guest in it, and the control channels of both.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::daemon::Datastore;
use crate::echo::Prober;
use crate::initramfs;
use crate::wire::{AGENT_PORT, Ask, CONTROL_PORT, ECHO_PORT};

const QEMU: &str = "qemu-system-x86_64";
/// The guest's memory.
const MEMORY_MIB: u32 = 512;
/// Time limits against hangs. A boot takes about ten seconds and an answer about one; beside other tests up to twenty times that.
const BOOT_MAX: Duration = Duration::from_secs(300);
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// Interval at which a wait checks that QEMU still runs.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Interval at which it is looked whether a guest is loaded.
const LOADING_LOOK: Duration = Duration::from_millis(50);
/// Number of lines of the console that are printed when a scenario failed.
const CONSOLE_LINES: usize = 60;

/// Last message of a kernel that cannot go on.
const PANIC: &str = "Kernel panic";
/// Messages of a kernel on its console when storage has failed.
const COMPLAINTS: [&str; 8] = [
    "I/O error",
    "EXT4-fs error",
    "EXT4-fs warning",
    "Corruption",
    "corrupt",
    "blocked for more than",
    "BUG:",
    PANIC,
];

pub(crate) struct Machine<'a> {
    datastore: &'a Datastore,
    child: Child,
    qmp: Qmp,
    listener: TcpListener,
    echo: UdpSocket,
    control: Option<BufReader<TcpStream>>,
}

impl<'a> Machine<'a> {
    /// Starts QEMU, and returns when the guest waits for requests. Its disks are `VM/disk0` and so on.
    pub(crate) fn start(datastore: &'a Datastore, vm: &str, disks: usize) -> Machine<'a> {
        Self::with(datastore, (0..disks).map(|disk| blockdev(datastore, vm, disk)).collect())
    }

    /// Starts QEMU with the disks as `attach` prints them; only the controller is the guest's own.
    pub(crate) fn attached(datastore: &'a Datastore, vm: &str) -> Machine<'a> {
        Self::with(datastore, attached(datastore, vm))
    }

    /// Starts QEMU as `start` does, with a guest agent's port behind a socket.
    pub(crate) fn with_agent(datastore: &'a Datastore, vm: &str, disks: usize, socket: &Path) -> Machine<'a> {
        let port = [
            "-chardev".to_owned(),
            format!("socket,id=agent,path={},server=on,wait=off", socket.display()),
            "-device".to_owned(),
            "virtio-serial-pci".to_owned(),
            "-device".to_owned(),
            format!("virtserialport,chardev=agent,name={AGENT_PORT}"),
        ];
        let disks = (0..disks).map(|disk| blockdev(datastore, vm, disk)).collect();
        Self::booted(datastore, &[arguments(disks), port.to_vec()].concat())
    }

    /// Starts QEMU with the disks as `attach` prints them for NBD or vhost-user, and with a second monitor behind a socket.
    pub(crate) fn with_monitor(datastore: &'a Datastore, vm: &str, via: &str, socket: &Path) -> Machine<'a> {
        let mut disks = match via {
            "nbd" => arguments(attached(datastore, vm)),
            _ => vhost_user(datastore, vm),
        };
        disks.extend(["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())]);
        Self::booted(datastore, &disks)
    }

    /// Runs the words of `attach --resume` after `power_off`, and then the guest. Returns when it has connected again.
    pub(crate) fn resume(&mut self, words: &[String]) {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        (self.child, self.qmp) = spawn(self.datastore, &mut command);
        self.qmp.until_loaded();
        self.qmp.execute("cont");
        self.await_guest();
    }

    /// Powers the machine off without notice to the guest.
    pub(crate) fn power_off(&mut self) {
        self.qmp.execute("quit");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "QEMU: {status}");
        // Not before: a guest whose host has hung up shuts itself down, and QEMU may end before it answers.
        self.control = None;
    }

    /// Starts QEMU with the disks of `attach --via vhost-user`, as it prints them, except for the size of the memory.
    pub(crate) fn over_vhost_user(datastore: &'a Datastore, vm: &str) -> Machine<'a> {
        Self::booted(datastore, &vhost_user(datastore, vm))
    }

    /// Starts QEMU with `disks`: the node of each, and the value of its `-blockdev`.
    fn with(datastore: &'a Datastore, disks: Vec<(String, String)>) -> Machine<'a> {
        Self::booted(datastore, &arguments(disks))
    }

    /// Starts QEMU with the arguments that give it its disks.
    fn booted(datastore: &'a Datastore, disks: &[String]) -> Machine<'a> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let echo = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut command = Command::new(QEMU);
        command.args([
            "-machine",
            "pc,accel=tcg",
            "-m",
            &MEMORY_MIB.to_string(),
            "-nodefaults",
            "-no-user-config",
        ]);
        command.args(["-display", "none", "-qmp", "stdio"]);
        command.arg("-serial").arg(format!("file:{}", datastore.beside("console.log").display()));
        boot_from(
            &mut command,
            datastore,
            listener.local_addr().unwrap().port(),
            echo.local_addr().unwrap().port(),
        );
        command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        command.args(disks);
        let (child, qmp) = spawn(datastore, &mut command);
        let mut machine = Machine { datastore, child, qmp, listener, echo, control: None };
        machine.await_guest();
        machine
    }

    /// Waits until the guest has connected, which it does once it is up.
    fn await_guest(&mut self) {
        let began = Instant::now();
        loop {
            let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
            if poll(&mut waiting, Some(&LOOK)).unwrap() > 0 {
                break;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("QEMU ended: {status}");
            }
            assert!(!self.console().contains(PANIC), "the guest's kernel has panicked");
            assert!(began.elapsed() < BOOT_MAX, "the guest is not up after {} s", BOOT_MAX.as_secs());
        }
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        self.control = Some(BufReader::new(stream));
        println!("the guest is up after {:.1} s", began.elapsed().as_secs_f64());
    }

    pub(crate) fn ask<T: DeserializeOwned>(&mut self, ask: &Ask) -> T {
        let control = self.control.as_mut().expect("a guest that is up");
        let mut line = serde_json::to_string(ask).unwrap();
        line.push('\n');
        control.get_mut().write_all(line.as_bytes()).unwrap_or_else(|e| panic!("{ask:?}: {e}"));
        line.clear();
        control.read_line(&mut line).unwrap_or_else(|e| panic!("{ask:?}: {e}"));
        let answer: Result<Value, String> =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{ask:?}: {e}: {line}"));
        serde_json::from_value(answer.unwrap_or_else(|e| panic!("{ask:?}: {e}"))).unwrap()
    }

    /// Probes once a second from now on. The guest has sent first, so the return address is known.
    pub(crate) fn prober(&self) -> Prober {
        let socket = self.echo.try_clone().unwrap();
        socket.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let (_, guest) = socket.recv_from(&mut [0; 8]).expect("the guest calls");
        socket.connect(guest).unwrap();
        Prober::start(socket)
    }

    /// Resets the machine as its reset button would, without the guest's cooperation. Returns when the guest is up
    /// again.
    pub(crate) fn hard_reset(&mut self) {
        // The old connection is kept until the new one replaces it: a guest whose host has hung up shuts itself down.
        self.qmp.execute("system_reset");
        self.await_guest();
    }

    /// Powers the machine off without notice to the guest. Asserts that its kernel has not complained until then.
    pub(crate) fn quit(mut self) {
        self.power_off();
        let console = self.console();
        let complains = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
        assert_eq!(console.lines().find(complains), None, "the guest's console:\n{console}");
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.datastore.beside("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Machine<'_> {
    /// Kills QEMU; has no effect after `quit`.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let console = self.console();
            let lines: Vec<&str> = console.lines().collect();
            println!(
                "the guest's console:\n{}",
                lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
            );
            let said = fs::read_to_string(self.datastore.beside("qemu.log"));
            println!("QEMU said: {}", said.unwrap_or_default());
        }
    }
}

/// Starts QEMU with a monitor on its standard input and output.
fn spawn(datastore: &Datastore, command: &mut Command) -> (Child, Qmp) {
    let log = fs::File::create(datastore.beside("qemu.log")).unwrap();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{QEMU}: {e}; `make setup` installs it"));
    let mut qmp = Qmp::new(&mut child);
    qmp.negotiate();
    (child, qmp)
}

fn boot_from(command: &mut Command, datastore: &Datastore, control_port: u16, echo_port: u16) {
    let initramfs = datastore.beside("initramfs");
    initramfs::write(&initramfs);
    // After a panic the guest stays as it is, so that a failure shows the console. On a busy host an emulated timer fails the
    // kernel's check of it, which is for broken hardware.
    let parameters = format!(
        "console=ttyS0 quiet panic=0 no_timer_check rdinit={} {CONTROL_PORT}={control_port} {ECHO_PORT}={echo_port}",
        initramfs::INIT
    );
    command.arg("-kernel").arg(initramfs::kernel()).arg("-initrd").arg(initramfs);
    command.args(["-append", &parameters]);
}

/// Returns the disks as `attach` prints them: the node of each, and the value of its `-blockdev`.
fn attached(datastore: &Datastore, vm: &str) -> Vec<(String, String)> {
    let attach = datastore.json(&format!("attach {vm}"));
    let snippet = attach["snippet"].as_str().unwrap();
    let words: Vec<&str> = snippet.split_whitespace().collect();
    let values = words.windows(2).filter(|pair| pair[0] == "-blockdev").map(|pair| pair[1].to_owned());
    values.enumerate().map(|(disk, value)| (format!("unstun-disk{disk}"), value)).collect()
}

/// Returns the arguments of `attach --via vhost-user`, except for the size of the memory.
fn vhost_user(datastore: &Datastore, vm: &str) -> Vec<String> {
    let attach = datastore.json(&format!("attach {vm} --via vhost-user"));
    let snippet = attach["snippet"].as_str().unwrap().replace("size=1G", &format!("size={MEMORY_MIB}M"));
    let lines = snippet.lines().filter(|line| !line.starts_with('#'));
    let words = lines.flat_map(|line| line.trim_end_matches(" \\").split_whitespace());
    words.map(str::to_owned).collect()
}

/// Returns the arguments that give QEMU disks: the node of each, and the value of its `-blockdev`.
fn arguments(disks: Vec<(String, String)>) -> Vec<String> {
    let arguments = disks.into_iter().enumerate().flat_map(|(disk, (node, blockdev))| {
        let device = format!("virtio-blk-pci,drive={node},serial=disk{disk}");
        ["-blockdev".to_owned(), blockdev, "-device".to_owned(), device]
    });
    arguments.collect()
}

fn blockdev(datastore: &Datastore, vm: &str, disk: usize) -> (String, String) {
    let name = format!("disk{disk}");
    let server = json!({ "type": "unix", "path": datastore.nbd_socket() });
    let export = format!("{vm}/{name}");
    let blockdev = json!({ "driver": "nbd", "node-name": name, "server": server, "export": export });
    (name, blockdev.to_string())
}

/// QEMU's own control channel, on its standard input and output: a line of JSON in each direction, with events in
/// between.
struct Qmp {
    commands: ChildStdin,
    lines: Receiver<Value>,
}

impl Qmp {
    fn new(child: &mut Child) -> Qmp {
        let commands = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = channel();
        // The thread ends with QEMU's output.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if tell.send(serde_json::from_str(&line).unwrap_or(Value::String(line))).is_err() {
                    return;
                }
            }
        });
        Qmp { commands, lines }
    }

    fn negotiate(&mut self) {
        let greeting = self.lines.recv_timeout(ANSWER_MAX).expect("QEMU greets");
        assert!(greeting["QMP"].is_object(), "QEMU: {greeting}");
        self.execute("qmp_capabilities");
    }

    /// Waits until QEMU has loaded the guest's memory.
    fn until_loaded(&mut self) {
        let began = Instant::now();
        while self.execute("query-status")["status"] == "inmigrate" {
            assert!(began.elapsed() < BOOT_MAX, "not loaded after {} s", BOOT_MAX.as_secs());
            // Most events come meanwhile; none says that it is loaded.
            let _ = self.lines.recv_timeout(LOADING_LOOK);
        }
    }

    fn execute(&mut self, command: &str) -> Value {
        writeln!(self.commands, "{}", json!({ "execute": command })).expect("QEMU listens");
        loop {
            let said = self.lines.recv_timeout(ANSWER_MAX).unwrap_or_else(|e| panic!("QMP {command}: {e}"));
            assert!(said["error"].is_null(), "QMP {command}: {said}");
            if !said["return"].is_null() {
                return said["return"].clone();
            }
        }
    }
}
