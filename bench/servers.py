"""The servers under test. Each owns one process, started here and ended by its own id."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

from bench.fio import Target
from bench.rest import Rest

# Against hangs only: a daemon with thousands of VMs takes half a minute.
START_S = 120
STOP_S = 60


class Server:
    """A process that serves until it is stopped; its output goes to a log."""

    def __init__(self, name, command, log, env=None):
        self.name = name
        self.log = Path(log)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
        self.pid = self.process.pid

    def wait_until(self, ready, look_s=0.05):
        deadline = time.monotonic() + START_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not serve:\n{self.log.read_text()}")
            time.sleep(look_s)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serves(target):
    """Whether a client of its own gets through the negotiation."""
    command = ["nbdinfo", "--can", "connect", target.uri]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def extent_of(descriptor):
    """The file that holds a layer's data: its descriptor names it in an extent line."""
    for line in descriptor.read_text().splitlines():
        if line.startswith("RW "):
            return descriptor.parent / line.split('"')[1]
    raise RuntimeError(f"{descriptor}: no extent line")


class Unstun(Server):
    """The daemon and its command line; the output of `--json` is its only source."""

    def __init__(self, binary, datastore, waits_for=None, options=()):
        """`waits_for`: an export that a client can attach to from then on; else until the daemon answers. `options`: of
        `up`."""
        self.binary = str(binary)
        self.datastore = Path(datastore)
        self.datastore.mkdir(parents=True, exist_ok=True)
        self.socket = self.datastore / "bench.sock"
        self.port = free_port()
        self.rest = Rest(self.datastore)
        listeners = ["--nbd", f"unix:{self.socket}", "--nbd", f"127.0.0.1:{self.port}"]
        super().__init__("unstun", [*self.command(), "up", *listeners, *options], self.datastore / "daemon.log")
        if waits_for:
            self.wait_until(lambda: serves(self.export(waits_for)), look_s=0.002)
        else:
            self.wait_until(lambda: self.try_json("status") is not None)

    def command(self):
        return [self.binary, "--datastore", str(self.datastore)]

    def json(self, *arguments):
        result = subprocess.run(
            [*self.command(), *arguments, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if result.returncode:
            raise RuntimeError(f"unstun {' '.join(arguments)}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    def try_json(self, *arguments):
        try:
            return self.json(*arguments)
        except RuntimeError:
            return None

    def create(self, vm, sizes, store="redo"):
        self.json("vm", "create", vm, f"--store={store}", *(f"--disk={size}" for size in sizes))

    def target(self, vm, disk=0):
        return self.export(f"{vm}/disk{disk}")

    def export(self, name):
        return Target(uri=f"nbd+unix:///{name}?socket={self.socket}")

    def tcp_target(self, vm, disk=0):
        return Target(uri=f"nbd://127.0.0.1:{self.port}/{vm}/disk{disk}")

    def layer_files(self, vm, disk=0):
        """The files behind a disk's layers, base first."""
        return [extent_of(Path(layer["descriptor"])) for layer in self.json("vm", "show", vm)["disks"][disk]["layers"]]

    def store_file(self):
        """Of all native disks of the datastore."""
        return self.datastore / "store.unstun"

    def take(self, vm, name):
        return self.json("snapshot", "take", vm, name)

    def commit(self, vm, name):
        """Waits for its end."""
        return self.json("snapshot", "commit", vm, name, "--yes")

    def commit_all(self, vm):
        return self.json("snapshot", "commit", vm, "--all", "--yes")

    def remove(self, vm):
        self.json("vm", "remove", vm, "--delete-disks", "--purge", "--yes")

    def commit_job(self, vm, name, seconds):
        return self.wait_for_job(self.json("snapshot", "commit", vm, name, "--yes", "--detach")["id"], seconds)

    def move_job(self, vm, store, seconds):
        return self.wait_for_job(self.json("vm", "move", vm, f"--store={store}", "--detach")["id"], seconds)

    def wait_for_job(self, number, seconds):
        """None if it has not ended by then."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            job = next(job for job in self.json("job", "list") if job["id"] == number)
            if job["state"] not in ("queued", "running", "paused"):
                return job
            time.sleep(0.25)
        return None


class QemuStorageDaemon(Server):
    """The main peer: raw, io_uring, O_DIRECT. Locks off: the file is shared in turns."""

    def __init__(self, base, folder, tcp=False):
        folder = Path(folder)
        path, port = folder / "qsd.sock", free_port()
        access = "aio=io_uring,cache.direct=on,locking=off"
        listen = f"addr.type=inet,addr.host=127.0.0.1,addr.port={port}" if tcp else f"addr.type=unix,addr.path={path}"
        self.target = Target(uri=f"nbd://127.0.0.1:{port}/disk" if tcp else f"nbd+unix:///disk?socket={path}")
        command = [
            "qemu-storage-daemon", "--blockdev", f"driver=file,node-name=base-file,filename={base},{access}",
            "--blockdev", "driver=raw,node-name=base,file=base-file", "--nbd-server", listen,
            "--export", "type=nbd,id=disk,node-name=base,name=disk,writable=on",
        ]  # fmt: skip
        super().__init__("qemu-storage-daemon", command, folder / "qsd.log")
        self.wait_until(lambda: serves(self.target))


class QemuVhostUser(Server):
    """The peer of our vhost-user sockets."""

    def __init__(self, base, folder):
        folder = Path(folder)
        self.socket = folder / "qsd-vhost.sock"
        access = "aio=io_uring,cache.direct=on,locking=off"
        command = [
            "qemu-storage-daemon", "--blockdev", f"driver=file,node-name=base-file,filename={base},{access}",
            "--blockdev", "driver=raw,node-name=base,file=base-file", "--export",
            f"type=vhost-user-blk,id=disk,node-name=base,writable=on,addr.type=unix,addr.path={self.socket}",
        ]  # fmt: skip
        super().__init__("qemu-storage-daemon", command, folder / "qsd-vhost.log")
        self.wait_until(self.socket.exists)


class Nbdkit(Server):
    def __init__(self, base, folder, filters=(), parameters=()):
        self.base = base
        path = Path(folder) / "nbdkit.sock"
        path.unlink(missing_ok=True)
        self.target = Target(uri=f"nbd+unix:///?socket={path}")
        command = ["nbdkit", "-f", "-U", str(path), *(f"--filter={name}" for name in filters), "file", str(base), *parameters]
        # A copy-on-write filter keeps what is written in a file there, without a name.
        env = {**os.environ, "TMPDIR": str(folder)}
        super().__init__("nbdkit", command, Path(folder) / "nbdkit.log", env)
        self.wait_until(lambda: serves(self.target))

    def settle(self):
        """It writes through the page cache: what is left there would be paid for by the next slice."""
        with open(self.base, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
