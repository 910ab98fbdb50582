"""What several cores cost: the CPU per I/O of eight VMs on one core, and on two; VMs with files, and native ones."""

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

    def __init__(self, bench, count, store):
        self.folder = bench.folder / f"cores{count}"
        self.unstun = Unstun(bench.unstun.binary, self.folder, options=["--cores", str(count)])
        self.size = (64 if bench.quick else 512) * MIB
        self.takes = 0
        self.forget()
        for vm in self.vms():
            self.unstun.create(vm, [self.size], store)
            fio.fill(self.unstun.target(vm), self.size, bench.folder)

    def forget(self):
        self.iops, self.cpu_us, self.batches, self.messages = [], [], [], []

    def vms(self):
        return [f"vm{number}" for number in range(VMS)]

    def take(self):
        self.takes += 1
        for vm in self.vms():
            self.unstun.take(vm, f"take{self.takes}")

    def sent(self):
        """Messages to the core of the stores, and batches of them, over all cores."""
        cores = self.unstun.json("status")["cores"]
        return [sum(core[what] for core in cores) for what in ("store_messages", "store_batches")]

    def slice(self, load):
        folders = [self.folder / f"fio-{vm}" for vm in self.vms()]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        before, sent = cpu_s(self.unstun.pid), self.sent()
        running = [fio.Running(self.unstun.target(vm), load, at) for vm, at in zip(self.vms(), folders)]
        results = [one.wait() for one in running]
        spent, (messages, batches) = cpu_s(self.unstun.pid) - before, self.sent()
        ios = sum(result.ios for result in results)
        self.iops.append(sum(result.iops for result in results))
        self.cpu_us.append(spent * 1e6 / ios)
        # Half of the VMs are on the core of the stores.
        self.messages.append((messages - sent[0]) / (ios / 2))
        self.batches.append((batches - sent[1]) / (ios / 2))

    def stop(self):
        self.unstun.stop()
        shutil.rmtree(self.folder)


def in_turns(bench, one, two, slice_of):
    for number in range(bench.rounds):
        for cores in [one, two] if number % 2 == 0 else [two, one]:
            slice_of(cores)


def cost(one, two):
    # The clients share the machine's processors with the daemon, so the rates say little on a small machine.
    rates = f"{Spread(one.iops).text(0)} and {Spread(two.iops).text(0)} IOPS"
    return f"{Spread(one.cpu_us).middle:.1f} us and {Spread(two.cpu_us).middle:.1f} us; {rates}"


def measure(bench):
    one, two = Cores(bench, 1, "redo"), Cores(bench, 2, "redo")
    in_turns(bench, one, two, lambda cores: cores.slice(Load(cores.size, bench.seconds, depth=8)))
    what = f"{VMS} VMs on two cores: CPU per I/O, of one core's"
    bench.report.at_most(what, ratios(two.cpu_us, one.cpu_us), 1.05, cost(one, two))
    one.stop()
    two.stop()
    native(bench)


def native(bench):
    one, two = Cores(bench, 1, "native"), Cores(bench, 2, "native")
    for cores in [one, two]:
        # Every window is reached once: from here on the second core has the places of all blocks.
        cores.slice(Load(cores.size, 0, rw="read", block=128 << 10))
        cores.forget()
    in_turns(bench, one, two, lambda cores: cores.slice(Load(cores.size, bench.seconds, depth=8)))
    what = f"{VMS} native VMs on two cores, reads and overwrites: CPU per I/O, of one core's"
    bench.report.at_most(what, ratios(two.cpu_us, one.cpu_us), 1.05, cost(one, two))
    what = "native VMs of the second core: messages per read or overwrite"
    bench.report.at_most(what, Spread(two.messages), 0.001, digits=4)
    one.forget()
    two.forget()
    in_turns(bench, one, two, lambda cores: redirect(bench, cores))
    what = f"{VMS} native VMs on two cores, redirects: CPU per I/O, of one core's"
    bench.report.at_most(what, ratios(two.cpu_us, one.cpu_us), 1.05, cost(one, two))
    messages = f"{Spread(two.messages).text()} messages per redirect"
    what = "native VMs of the second core: batches of messages per redirect"
    bench.report.at_most(what, Spread(two.batches), 0.125, messages, digits=3)
    one.stop()
    two.stop()


def redirect(bench, cores):
    """Every write of the slice is the first one of its block after a take."""
    cores.take()
    cores.slice(Load(cores.size, 0, rw="randwrite", depth=8, once=True))
