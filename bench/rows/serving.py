"""How fast a disk is served: beside the bare file, and beside the peers on the same file."""

import time

from bench import fio
from bench.fio import Load, Target
from bench.machine import cpu_s, wakeups
from bench.report import Figure, Spread, ratios
from bench.servers import Nbdkit, QemuStorageDaemon

IDLE_CLIENTS = 8
IDLE_S = 5


class Subject:
    """A server in the rotation, and what its slices gave."""

    def __init__(self, name, target, pid=None, settle=None):
        self.name, self.target, self.pid, self.settle = name, target, pid, settle
        self.iops, self.cpu_us = [], []

    def slice(self, load, folder):
        before = cpu_s(self.pid) if self.pid else 0
        result = fio.run(self.target, load, folder)
        spent = cpu_s(self.pid) - before if self.pid else 0
        self.iops.append(result.iops)
        self.cpu_us.append(spent * 1e6 / result.ios)
        if self.settle:
            self.settle()


def rotate(bench, subjects, load):
    """Alternating slices; the first server of a round changes, so that none always follows the same one."""
    for round_number in range(bench.rounds):
        first = round_number % len(subjects)
        for subject in subjects[first:] + subjects[:first]:
            subject.slice(load, bench.folder)
    for subject in subjects:
        print(f"    {subject.name:20} {Spread(subject.iops).text(0)} IOPS", flush=True)


def measure(bench):
    base = bench.unstun.layer_files("web")[0]
    ours = bench.unstun.target("web")
    with QemuStorageDaemon(base, bench.folder) as peer, Nbdkit(base, bench.folder) as nbdkit:
        full_depth(bench, base, ours, peer, nbdkit)
        beside_peer(bench, "depth 1", Load(bench.size, bench.seconds, depth=1), ours, peer, 1.4)
        beside_peer(bench, "depth 8", Load(bench.size, bench.seconds, depth=8), ours, peer, 1.4)
        two = Load(bench.size, bench.seconds, depth=32, jobs=2)
        beside_peer(bench, "two connections, depth 32 each", two, ours, peer, 1.5)
    with QemuStorageDaemon(base, bench.folder, tcp=True) as peer:
        load = Load(bench.size, bench.seconds)
        beside_peer(bench, "TCP, depth 32", load, bench.unstun.tcp_target("web"), peer, 1.5)
    idle(bench)


def full_depth(bench, base, ours, peer, nbdkit):
    raw = Subject("raw io_uring", Target(file=str(base)))
    unstun = Subject("unstun", ours, bench.unstun.pid)
    qsd = Subject("qemu-storage-daemon", peer.target, peer.pid)
    kit = Subject("nbdkit file", nbdkit.target, nbdkit.pid, nbdkit.settle)
    rotate(bench, [raw, unstun, qsd, kit], Load(bench.size, bench.seconds))
    report = bench.report
    report.at_least("NBD 70/30 depth 32, of raw io_uring", ratios(unstun.iops, raw.iops), 0.85)
    report.at_least("the same, of qemu-storage-daemon", ratios(unstun.iops, qsd.iops), 1.5)
    of_kit = ratios(unstun.iops, kit.iops).text()
    report.add(Figure("the same, of nbdkit file", "", of_kit, note="nbdkit through the page cache"))
    cost = f"{Spread(unstun.cpu_us).middle:.1f} us, peer {Spread(qsd.cpu_us).middle:.1f} us"
    report.at_most("CPU per I/O, of qemu-storage-daemon's", ratios(unstun.cpu_us, qsd.cpu_us), 0.5, cost)


def beside_peer(bench, what, load, ours, peer, aim):
    unstun = Subject("unstun", ours, bench.unstun.pid)
    qsd = Subject("qemu-storage-daemon", peer.target, peer.pid)
    rotate(bench, [unstun, qsd], load)
    cpu = ratios(unstun.cpu_us, qsd.cpu_us).middle
    bench.report.at_least(f"{what}, of qemu-storage-daemon", ratios(unstun.iops, qsd.iops), aim, f"CPU {cpu:.2f} of its")


def idle(bench):
    """Each client makes one request and then waits for longer than this lasts."""
    load = Load(bench.size, 2 * IDLE_S, depth=1, jobs=IDLE_CLIENTS, extra=["--thinktime=60s"])
    clients = fio.Running(bench.unstun.target("web"), load, bench.folder)
    time.sleep(2)
    attached = len(bench.unstun.json("vm", "show", "web")["clients"])
    cpu, woken = cpu_s(bench.unstun.pid), wakeups(bench.unstun.pid)
    time.sleep(IDLE_S)
    cpu, woken = cpu_s(bench.unstun.pid) - cpu, wakeups(bench.unstun.pid) - woken
    clients.stop()
    measured = f"{cpu * 1000:.0f} ms of CPU, {woken} wake-ups in {IDLE_S} s"
    bench.report.add(Figure(f"idle with {attached} clients attached", "none", measured, cpu == 0))
