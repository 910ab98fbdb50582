"""Many VMs, clones, snapshots and connections, and a disk of 64 TiB: how long the verbs take, and the daemon's memory."""

import resource
import shutil
import socket
import struct
import time

from bench import fio
from bench.fio import Load
from bench.machine import memory_bytes
from bench.report import Figure
from bench.servers import Unstun

GIB, TIB = 1 << 30, 1 << 40
# The default of `up --memory`.
MEMORY_BYTES = GIB
OPTION_MAGIC = 0x49484156454F5054
REPLY_MAGIC = 0x0003E889045565A9
OPTION_GO, REPLY_ACK = 7, 1
# Descriptors that the driver needs beside its connections.
DESCRIPTORS_OWN = 256


def measure(bench):
    folder = bench.folder / "large"
    for what in (many_vms, many_clones, many_snapshots, many_connections, a_large_disk):
        what(bench, folder)
        shutil.rmtree(folder)


def many_vms(bench, folder):
    count = 500 if bench.quick else 5000
    with Unstun(bench.unstun.binary, folder) as unstun:
        each = timed(lambda number: new_vm(unstun, f"vm{number}", GIB), count)
        peak = peak_bytes(unstun)
    restarted(bench, folder, "vm7", peak, f"{count} native VMs", f"create {each:.1f} ms each")


def many_clones(bench, folder):
    count = 100 if bench.quick else 1000
    with Unstun(bench.unstun.binary, folder) as unstun:
        new_vm(unstun, "gold", GIB)
        unstun.take("gold", "base")
        each = timed(lambda number: unstun.rest.clone("gold", "base", f"clone{number}"), count)
        peak = peak_bytes(unstun)
    restarted(bench, folder, "gold", peak, f"{count} clones of a native VM", f"clone {each:.1f} ms each")


def many_snapshots(bench, folder):
    count = 100 if bench.quick else 1000
    with Unstun(bench.unstun.binary, folder) as unstun:
        new_vm(unstun, "web", GIB)
        each = timed(lambda number: unstun.rest.take("web", f"s{number}"), count)
        peak = peak_bytes(unstun)
    restarted(bench, folder, "web", peak, f"{count} snapshots of a native VM", f"take {each:.1f} ms each")


def a_large_disk(bench, folder):
    """Writes all over a sparse disk: each block has a leaf of its own, so the map is as large as it gets."""
    with Unstun(bench.unstun.binary, folder) as unstun:
        new_vm(unstun, "huge", 64 * TIB)
        fio.run(unstun.target("huge"), Load(64 * TIB, bench.seconds, rw="randwrite"), bench.folder)
        peak = peak_bytes(unstun)
    restarted(bench, folder, "huge", peak, "a disk of 64 TiB, written all over", "")


def many_connections(bench, folder):
    count = 500 if bench.quick else 2000
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(limit, count + DESCRIPTORS_OWN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limit))
    count = min(count, wanted - DESCRIPTORS_OWN)
    with Unstun(bench.unstun.binary, folder) as unstun:
        exports = [f"vm{number}" for number in range(10)]
        for name in exports:
            new_vm(unstun, name, GIB)
        connections = []
        began = time.monotonic()
        try:
            for number in range(count):
                connections.append(connect(unstun.socket, f"{exports[number % 10]}/disk0"))
            each = (time.monotonic() - began) * 1000 / count
            took = fio.run(unstun.target("vm0"), Load(GIB, bench.seconds), bench.folder)
            report(bench, peak_bytes(unstun), f"{count} connections to 10 VMs", f"connect {each:.2f} ms each, {took.iops:.0f} IOPS of a client beside them")
        finally:
            for connection in connections:
                connection.close()


def new_vm(unstun, name, size):
    disks = [{"size_bytes": size}]
    unstun.rest.call("POST", "/vms", {"name": name, "store": "native", "disks": disks})


def timed(work, count):
    """The mean time of one call, ms."""
    began = time.monotonic()
    for number in range(count):
        work(number)
    return (time.monotonic() - began) * 1000 / count


def restarted(bench, folder, vm, peak, what, note):
    """Starts the daemon again, and reports the greater peak of both."""
    began = time.monotonic()
    with Unstun(bench.unstun.binary, folder, waits_for=f"{vm}/disk0") as unstun:
        start = time.monotonic() - began
        calls = {"list": "/vms", "show": f"/vms/{vm}", "snapshots": f"/vms/{vm}/snapshots"}
        took = {name: unstun.rest.call("GET", path)[1] for name, path in calls.items()}
        took["take"] = unstun.rest.take(vm, "one-more")[1]
        times = ", ".join(f"{name} {ms:.1f} ms" for name, ms in took.items())
        report(bench, max(peak, peak_bytes(unstun)), what, ", ".join(part for part in (note, f"start {start:.2f} s", times) if part))


def peak_bytes(unstun):
    return memory_bytes(unstun.pid, "VmHWM")


def report(bench, peak, what, note):
    measured = f"{peak / (1 << 20):.0f} MiB"
    bench.report.add(Figure(f"memory, {what}", f"<= {MEMORY_BYTES >> 20} MiB", measured, peak <= MEMORY_BYTES, note))


def connect(path, export):
    """A connection in the transmission phase: fixed newstyle, NBD_OPT_GO without requests for information."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    receive(connection, 18)
    name = export.encode()
    data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    connection.sendall(struct.pack(">IQII", 3, OPTION_MAGIC, OPTION_GO, len(data)) + data)
    while True:
        magic, _, kind, length = struct.unpack(">QIII", receive(connection, 20))
        text = receive(connection, length)
        if magic != REPLY_MAGIC or kind >> 31:
            raise RuntimeError(f"{export}: the server answered {kind:#x}: {text.decode(errors='replace')}")
        if kind == REPLY_ACK:
            return connection


def receive(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise RuntimeError("the server closed the connection during the negotiation")
        data += part
    return data
