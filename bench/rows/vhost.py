"""vhost-user beside raw io_uring, QEMU's server of the same protocol, and our own NBD."""

import json
import subprocess
from pathlib import Path

from bench import fio
from bench.fio import Load, Target
from bench.report import Figure, Spread, ratios
from bench.servers import QemuVhostUser

DEPTHS = (1, 32)
NATIVE_SIZE = 1 << 30
RAW, REDO, NATIVE, QEMU, NBD = "raw io_uring", "vhost-user redo", "vhost-user native", "qemu vhost-user", "NBD redo"


def measure(bench):
    """The same small client measures every vhost-user server; fio measures the file and NBD. All take turns."""
    unstun = bench.unstun
    unstun.create("vhost", [NATIVE_SIZE], store="native")
    fio.fill(unstun.target("vhost"), NATIVE_SIZE, bench.folder)
    base = unstun.layer_files("web")[0]
    with QemuVhostUser(base, bench.folder) as qemu:
        subjects = {
            RAW: lambda depth: by_fio(bench, Target(file=str(base)), depth),
            REDO: lambda depth: by_vhost_user(bench, socket_of(unstun, "web"), depth),
            QEMU: lambda depth: by_vhost_user(bench, qemu.socket, depth),
            NATIVE: lambda depth: by_vhost_user(bench, socket_of(unstun, "vhost"), depth),
            NBD: lambda depth: by_fio(bench, unstun.target("web"), depth),
        }
        for depth in DEPTHS:
            rounds = [{name: run(depth) for name, run in subjects.items()} for _ in range(bench.rounds)]
            report(bench, depth, rounds)
    unstun.remove("vhost")


def report(bench, depth, rounds):
    iops = {name: [one[name][0] for one in rounds] for name in rounds[0]}
    for name in (REDO, NATIVE, QEMU, NBD):
        costs = [one[name][1] for one in rounds if one[name][1] is not None]
        note = f"{Spread(iops[name]).text(0)} IOPS"
        if costs:
            note += f", server {Spread(costs).text(1)} us of processor per I/O"
        what = f"{name}, 4 KiB 70/30, depth {depth}, of raw"
        if depth > 1 and name in (REDO, NATIVE):
            bench.report.at_least(what, ratios(iops[name], iops[RAW]), 0.9, note)
        else:
            bench.report.add(Figure(what, "", ratios(iops[name], iops[RAW]).text(), note=note))
    bench.report.add(Figure(f"{REDO}, depth {depth}, of QEMU's", "", ratios(iops[REDO], iops[QEMU]).text()))
    if depth == 1:
        extra = [1e6 / ours - 1e6 / raw for ours, raw in zip(iops[REDO], iops[RAW])]
        bench.report.at_most("vhost-user redo at depth 1, us above raw", Spread(extra), 8, digits=1)


def by_fio(bench, target, depth):
    return fio.run(target, Load(bench.size, bench.seconds, depth=depth), bench.folder).iops, None


def by_vhost_user(bench, socket, depth):
    program = Path(bench.unstun.binary).parent / "examples" / "vhostload"
    command = [str(program), str(socket), str(depth), str(bench.seconds)]
    result = json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout)
    return result["iops"], result["server_us"]


def socket_of(unstun, vm):
    return unstun.json("vm", "show", vm)["disks"][0]["vhost_user_socket"]
