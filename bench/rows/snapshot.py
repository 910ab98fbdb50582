"""What a snapshot costs while it is there: flushes, and I/Os at depth."""

from dataclasses import dataclass

from bench import fio
from bench.fio import Load
from bench.machine import storage_bytes
from bench.report import Figure

# First writes of one layer of the deep chain, spread over the disk.
LAYER_WRITES = 2000
DEEP_SIZE = 1 << 30
# At the disk's start, written whole in the top layer: overwrites go here.
TOP_SIZE = 32 << 20
FLUSH_SIZE = 64 << 20
FLUSH_WRITES = 2000


def measure(bench):
    flushes(bench)
    depths(bench)


def flushes(bench, vm="web", kind="", first_aim=2):
    """One write, one flush, one at a time: `fsync=1` becomes an NBD flush after each write."""
    what = f"{kind}device flushes per guest flush"
    if not bench.device.exists():
        bench.report.add(Figure(what, f"1 and {first_aim}", "no device counters here"))
        return
    target = bench.unstun.target(vm)
    load = Load(
        FLUSH_SIZE, 0, rw="randwrite", depth=1, once=True, extra=["--fsync=1", f"--number_ios={FLUSH_WRITES}"]
    )

    def per_flush():
        before = bench.device.count()
        fio.run(target, load, bench.folder)
        return (bench.device.count() - before).flushes / FLUSH_WRITES

    # The base holds everything: the first run makes sure of it.
    fio.run(target, load, bench.folder)
    overwrites = per_flush()
    bench.unstun.take(vm, "flushes")
    first_writes = per_flush()
    bench.unstun.commit(vm, "flushes")
    report, met = bench.report, first_writes <= first_aim * 1.05
    report.add(Figure(f"{what}, overwrites", "1", f"{overwrites:.2f}", overwrites <= 1.05))
    report.add(Figure(f"{what}, first writes", f"{first_aim}", f"{first_writes:.2f}", met))


def depths(bench):
    """A chain grows layer by layer, each populated all over the disk; at some depths it is read and overwritten."""
    unstun, target = bench.unstun, bench.unstun.target("deep")
    unstun.create("deep", [DEEP_SIZE])
    fio.fill(target, DEEP_SIZE, bench.folder)
    layers = 1
    for depth in bench.depths:
        while layers < depth:
            unstun.take("deep", f"layer-{layers}")
            layers += 1
            load = Load(DEEP_SIZE, 0, rw="randwrite", once=True, extra=[f"--number_ios={LAYER_WRITES}"])
            fio.run(target, load, bench.folder)
        assert len(unstun.json("vm", "show", "deep")["disks"][0]["layers"]) == layers
        fio.run(target, Load(TOP_SIZE, 0, rw="write", block=1 << 20, depth=8), bench.folder)
        what = "1 layer" if depth == 1 else f"{depth} layers"
        device_ios(bench, DEEP_SIZE, f"device I/Os per guest I/O, {what}", 0.01)
    unstun.remove("deep")


def device_ios(bench, size, what, tolerance):
    """Of the VM `deep`. Two accounts must agree: the daemon's count of requests to its files, and the kernel's of bytes it
    moved."""
    # Every region once, so that its map is in memory.
    fio.run(bench.unstun.target("deep"), Load(size, 0, rw="read", block=1 << 20, depth=4), bench.folder)
    read = per_guest_io(bench, "deep", Load(size, bench.seconds, rw="randread", depth=8))
    written = per_guest_io(bench, "deep", Load(TOP_SIZE, bench.seconds, rw="randwrite", depth=8))
    measured = f"{read.requests:.3f} reads, {written.requests:.3f} overwrites"
    met = all(abs(ratio - 1) <= tolerance for ratio in (read.requests, read.size, written.requests, written.size))
    note = f"kernel, in bytes: {read.size:.3f} and {written.size:.3f}; {read.iops:.0f} reads/s"
    bench.report.add(Figure(what, f"1.00 +- {tolerance}", measured, met, note))


@dataclass
class PerGuestIo:
    requests: float
    size: float
    iops: float


def per_guest_io(bench, vm, load):
    def counts():
        io = bench.unstun.json("vm", "show", vm)["disks"][0]["io"]
        guest, device = io["guest_reads"] + io["guest_writes"], io["device_reads"] + io["device_writes"]
        return guest, device, sum(storage_bytes(bench.unstun.pid))

    before = counts()
    result = fio.run(bench.unstun.target(vm), load, bench.folder)
    guest, device, moved = (after - was for after, was in zip(counts(), before))
    return PerGuestIo(device / guest, moved / (guest * load.block), result.iops)
