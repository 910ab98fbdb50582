"""vhost-user beside raw io_uring, QEMU's server of the same protocol, and our own NBD."""

import json
import os
import subprocess
from pathlib import Path

from bench import fio
from bench.fio import Load, Target
from bench.report import Figure, Spread, ratios
from bench.servers import QemuVhostUser

DEPTHS = (1, 8, 32)
# All subjects take turns in short slices, so that other load on the machine meets each of them.
SLICE_S = 1.5
ROUNDS, ROUNDS_QUICK = 15, 7
# Patience with a client beyond its slice.
CLIENT_PATIENCE_S = 60
RAW, REDO, NATIVE, QEMU, NBD = "raw io_uring", "vhost-user redo", "vhost-user native", "QEMU's vhost-user", "NBD redo"
TICKS_S = os.sysconf("SC_CLK_TCK")


def measure(bench):
    """The same small client measures every vhost-user server; fio measures the file and NBD."""
    unstun = bench.unstun
    # As large as the redo disk, and filled: every write is an overwrite.
    unstun.create("vhost", [bench.size], store="native")
    fio.fill(unstun.target("vhost"), bench.size, bench.folder)
    base = unstun.layer_files("web")[0]
    with QemuVhostUser(base, bench.folder) as qemu:
        subjects = {
            RAW: lambda depth: by_file(bench, base, depth),
            REDO: lambda depth: by_vhost_user(bench, socket_of(unstun, "web"), depth),
            QEMU: lambda depth: by_vhost_user(bench, qemu.socket, depth),
            NATIVE: lambda depth: by_vhost_user(bench, socket_of(unstun, "vhost"), depth),
            NBD: lambda depth: by_nbd(bench, depth),
        }
        for depth in DEPTHS:
            rounds = range(ROUNDS_QUICK if bench.quick else ROUNDS)
            report(bench, depth, [{name: run(depth) for name, run in subjects.items()} for _ in rounds])
    unstun.remove("vhost")


def report(bench, depth, rounds):
    iops = {name: [one[name][0] for one in rounds] for name in rounds[0]}
    costs = {name: [one[name][1] for one in rounds] for name in rounds[0]}
    # What the kernel alone takes: no server can be below it.
    note = f"client {Spread(costs[RAW]).text(1)} us of processor per I/O"
    bench.report.add(Figure(f"{RAW}, 4 KiB 70/30, depth {depth}", "", f"{Spread(iops[RAW]).text(0)} IOPS", note=note))
    for name in (REDO, NATIVE, QEMU, NBD):
        cost = costs[name]
        note = f"{Spread(iops[name]).text(0)} IOPS, server {Spread(cost).text(1)} us of processor per I/O"
        what = f"{name}, depth {depth}, of raw"
        if depth == max(DEPTHS) and name in (REDO, NATIVE):
            bench.report.at_least(what, ratios(iops[name], iops[RAW]), 0.9, note)
        else:
            bench.report.add(Figure(what, "", ratios(iops[name], iops[RAW]).text(), note=note))
    bench.report.add(Figure(f"{REDO}, depth {depth}, of QEMU's", "", ratios(iops[REDO], iops[QEMU]).text()))
    what = f"{REDO}, depth {depth}, processor per I/O of our NBD's"
    bench.report.at_most(what, ratios(costs[REDO], costs[NBD]), 0.5)
    if depth == 1:
        extra = [1e6 / ours - 1e6 / raw for ours, raw in zip(iops[REDO], iops[RAW])]
        bench.report.at_most(f"{REDO}, depth 1, us above raw", Spread(extra), 8, digits=1)


def load(bench, depth):
    return Load(bench.size, SLICE_S, depth=depth)


def by_file(bench, base, depth):
    result = fio.run(Target(file=str(base)), load(bench, depth), bench.folder)
    return result.iops, result.processor_us


def by_nbd(bench, depth):
    before = processor_s(bench.unstun.pid)
    result = fio.run(bench.unstun.target("web"), load(bench, depth), bench.folder)
    return result.iops, (processor_s(bench.unstun.pid) - before) * 1e6 / result.ios


def processor_s(pid):
    """Processor time of all threads of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def by_vhost_user(bench, socket, depth):
    program = Path(bench.unstun.binary).parent / "examples" / "vhostload"
    command = [str(program), str(socket), str(depth), str(SLICE_S)]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SLICE_S + CLIENT_PATIENCE_S
    )
    if ended.returncode:
        raise RuntimeError(f"vhostload {socket}: {ended.stderr.strip()}")
    result = json.loads(ended.stdout)
    return result["iops"], result["server_us"]


def socket_of(unstun, vm):
    return unstun.json("vm", "show", vm)["disks"][0]["vhost_user_socket"]
