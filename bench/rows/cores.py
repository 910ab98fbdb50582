"""What several cores cost: the CPU per I/O of eight VMs with files on one core, and on two."""

import shutil

from bench import fio
from bench.fio import Load
from bench.machine import cpu_s
from bench.report import Spread, ratios
from bench.servers import Unstun

VMS = 8
MIB = 1 << 20


class Cores:
    """A daemon on a number of cores, its VMs, and what its slices gave."""

    def __init__(self, bench, count):
        self.folder = bench.folder / f"cores{count}"
        self.unstun = Unstun(bench.unstun.binary, self.folder, options=["--cores", str(count)])
        self.size = (64 if bench.quick else 512) * MIB
        self.iops, self.cpu_us = [], []
        for vm in self.vms():
            self.unstun.create(vm, [self.size])
            fio.fill(self.unstun.target(vm), self.size, bench.folder)

    def vms(self):
        return [f"vm{number}" for number in range(VMS)]

    def slice(self, seconds):
        folders = [self.folder / f"fio-{vm}" for vm in self.vms()]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        before = cpu_s(self.unstun.pid)
        load = Load(self.size, seconds, depth=8)
        running = [fio.Running(self.unstun.target(vm), load, at) for vm, at in zip(self.vms(), folders)]
        results = [one.wait() for one in running]
        spent = cpu_s(self.unstun.pid) - before
        self.iops.append(sum(result.iops for result in results))
        self.cpu_us.append(spent * 1e6 / sum(result.ios for result in results))

    def stop(self):
        self.unstun.stop()
        shutil.rmtree(self.folder)


def measure(bench):
    one, two = Cores(bench, 1), Cores(bench, 2)
    for number in range(bench.rounds):
        for cores in [one, two] if number % 2 == 0 else [two, one]:
            cores.slice(bench.seconds)
    # The clients share the machine's processors with the daemon, so the rates say little on a small machine.
    rates = f"{Spread(one.iops).text(0)} and {Spread(two.iops).text(0)} IOPS"
    cost = f"{Spread(one.cpu_us).middle:.1f} us and {Spread(two.cpu_us).middle:.1f} us; {rates}"
    what = f"{VMS} VMs on two cores: CPU per I/O, of one core's"
    bench.report.at_most(what, ratios(two.cpu_us, one.cpu_us), 1.05, cost)
    one.stop()
    two.stop()
