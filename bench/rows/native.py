"""The native store: the cost of its disks without snapshots, under snapshots, and while space is reclaimed."""

import time
from functools import partial
from statistics import mean

from bench import fio
from bench.fio import Load
from bench.machine import storage_bytes
from bench.native_store import StoreFile
from bench.report import Figure, Spread, ratios
from bench.rows import native_events, native_long, native_move, native_reads, stun
from bench.rows.serving import Subject, rotate
from bench.rows.snapshot import flushes, per_guest_io

CHECKPOINTS = 3
# Longer than three checkpoints take on a disk of a few thousand IOPS.
FIRST_WRITES_S = 300
RECLAIM_S = 300
# Of the default options: the pages of maps that are kept in memory, each of 252 blocks of 4 KiB.
CACHE_BYTES = 64 << 20
LEAF_BYTES = 252 * 4096


def measure(bench):
    unstun = bench.unstun
    unstun.create("native", [bench.native_size], "native")
    fio.fill(unstun.target("native"), bench.native_size, bench.folder)
    steady(bench)
    flushes(bench, "native", "native: ", 1)
    reclaim(bench, first_writes(bench))
    steady(bench, "overwritten at random under a snapshot since")
    unstun.remove("native")
    native_reads.measure(bench)
    stun.of_store(bench, "native")
    native_long.measure(bench)
    native_move.measure(bench)
    native_events.measure(bench)


def steady(bench, how="fully allocated"):
    """Beside a flat redo disk of the same daemon, written whole in order."""
    unstun = bench.unstun
    load = Load(bench.size, bench.seconds)
    io = per_guest_io(bench, "native", load)
    measured = f"{io.requests:.3f} requests, {io.size:.3f} in bytes by the kernel"
    met = abs(io.requests - 1) <= 0.01 and abs(io.size - 1) <= 0.01
    bench.report.add(Figure(f"native, {how}: device I/Os per guest I/O", "1.00", measured, met))
    native = Subject("native", unstun.target("native"), unstun.pid)
    redo = Subject("redo", unstun.target("web"), unstun.pid)
    rotate(bench, [native, redo], load)
    cost = f"{Spread(native.cpu_us).middle:.1f} us, redo {Spread(redo.cpu_us).middle:.1f} us"
    cost += f"; IOPS {ratios(native.iops, redo.iops).text()} of redo's"
    what = f"native, {how}: CPU per I/O, of a flat redo disk's"
    bench.report.at_most(what, ratios(native.cpu_us, redo.cpu_us), 1.05, cost)


def first_writes(bench):
    """No block is visited twice: every write after the take is a first write, until three checkpoints are durable.
    Returns the bytes written."""
    unstun, target = bench.unstun, bench.unstun.target("native")
    before = fio.run(target, Load(bench.native_size, 10, rw="randwrite"), bench.folder).iops
    unstun.take("native", "first")
    began, moved = time.monotonic(), written(unstun)
    seconds, checkpoints = until_checkpoints(bench, target, Load(bench.native_size, 0, rw="randwrite", once=True))
    took = time.monotonic() - began
    guest, device = (after - at_first for after, at_first in zip(written(unstun), moved))
    leaves = bench.native_size // LEAF_BYTES
    where = f"disk of {bench.native_size >> 30} GiB, map {leaves * 4096 / CACHE_BYTES:.2f} of the map cache"
    note = f"{where}; {checkpoints} checkpoints, {took:.0f} s, slowest second {min(seconds[:-1]) / before:.2f}"
    note += f"; {device / guest:.2f} bytes written a guest's byte"
    what = "native, fresh snapshot, first writes only"
    bench.report.at_least(f"{what}, first 10 s, of before", Spread([mean(seconds[:10]) / before]), 0.98)
    bench.report.at_least(f"{what}, three checkpoints, of before", Spread([mean(seconds) / before]), 0.9, note)
    return guest


def written(unstun):
    """Bytes: by the guest, and by the daemon on the storage."""
    writes = unstun.json("vm", "show", "native")["disks"][0]["io"]["guest_writes"]
    return writes * 4096, storage_bytes(unstun.pid)[1]


def until_checkpoints(bench, target, load, wanted=CHECKPOINTS):
    """(IOPS of each second, checkpoints durable by the end); ends early where all blocks were visited."""
    load.extra = [*load.extra, *fio.seconds_log(bench.folder)]
    with StoreFile(bench.unstun.store_file()) as store:
        at_start = store.checkpoints()
        running = fio.Running(target, load, bench.folder)
        deadline = time.monotonic() + FIRST_WRITES_S
        while running.process.poll() is None and time.monotonic() < deadline:
            if store.checkpoints() - at_start >= wanted:
                break
            time.sleep(0.25)
        checkpoints = store.checkpoints() - at_start
    running.stop()
    return fio.by_second(bench.folder), checkpoints


def reclaim(bench, held):
    """The snapshot of before holds what the first writes replaced. The load runs from the drop to the end."""
    target = bench.unstun.target("native")
    before = fio.run(target, Load(bench.native_size, bench.seconds * 2), bench.folder)
    operation = partial(bench.unstun.commit_job, "native", "first", RECLAIM_S - 10)
    job, took, during = fio.during(target, Load(bench.native_size, RECLAIM_S), bench.folder, operation)
    what = "native, from drop to space back"
    if job is None:
        bench.report.add(Figure(what, "ends", f"not after {RECLAIM_S - 10} s", False))
        return
    note = f"{held / (1 << 20):.0f} MiB back in {took:.1f} s"
    bench.report.at_least(f"{what}: IOPS of before", Spread([during.iops / before.iops]), 0.95, note)
    bench.report.at_most(f"{what}: p99 of before", Spread([during.p99_us / before.p99_us]), 1.5)
