"""Native disks under many snapshots: depth, and how much of a sequential read's speed random overwrites leave."""

import time

from bench import fio
from bench.fio import Load
from bench.report import Figure, Spread
from bench.rows.snapshot import TOP_SIZE, device_ios

SIZE = 1 << 30
DEPTHS = (1, 8, 64, 1000)
SNAPSHOTS = (1, 10, 100)
# Between two takes of a row: so many random writes of 4 KiB.
LAYER_WRITES = 2000
# While a chain grows: takes and writes a second.
TAKES_PER_S, GROWING_IOPS = 20, 4000
# Faster than this a disk is not overwritten between takes.
OVERWRITES_PER_S = 20_000


def measure(bench):
    unstun = bench.unstun
    for vm in ("twin", "deep"):
        unstun.create(vm, [SIZE], "native")
        fio.fill(unstun.target(vm), SIZE, bench.folder)
    locality(bench)
    # It is fragmented now, as its twin becomes.
    depths(bench)
    for vm in ("twin", "deep"):
        unstun.remove(vm)


def take_under_writes(bench, numbers, iops, takes_per_s):
    """Each take falls between other random writes: none of the snapshots is empty."""
    seconds = len(numbers) / takes_per_s
    load = Load(SIZE, seconds + 30, rw="randwrite", extra=[f"--rate_iops={iops}"])
    running = fio.Running(bench.unstun.target("deep"), load, bench.folder)
    time.sleep(0.5)
    began = time.monotonic()
    for done, number in enumerate(numbers, 1):
        bench.unstun.rest.take("deep", f"s{number}")
        time.sleep(max(0.0, began + done / takes_per_s - time.monotonic()))
    running.stop()


def locality(bench):
    """Beside a twin that was written in order once and never again."""
    taken = 0
    for wanted in SNAPSHOTS:
        take_under_writes(bench, range(taken, wanted), OVERWRITES_PER_S, OVERWRITES_PER_S / LAYER_WRITES)
        taken = wanted
        twin, deep = [], []
        for _ in range(bench.rounds):
            twin.append(read_in_order(bench, "twin"))
            deep.append(read_in_order(bench, "deep"))
        of_twin = Spread([ours / theirs for ours, theirs in zip(deep, twin)])
        percent = 100 * wanted * LAYER_WRITES / (SIZE // 4096)
        what = f"native, sequential read after {wanted} snapshots of random writes, of before"
        note = f"{Spread(deep).middle:.0f} MiB/s; as many writes as {percent:.0f} % of the blocks"
        bench.report.add(Figure(what, "", of_twin.text(), note=note))
    bench.unstun.commit_all("deep")


def read_in_order(bench, vm):
    load = Load(SIZE, bench.seconds / 2, rw="read", block=1 << 20, depth=4)
    return fio.run(bench.unstun.target(vm), load, bench.folder).iops


def depths(bench):
    # As fragmented as the other.
    fio.run(bench.unstun.target("twin"), Load(SIZE, 0, rw="randwrite", once=True), bench.folder)
    taken = 0
    for depth in DEPTHS:
        take_under_writes(bench, range(1000 + taken, 1000 + depth), GROWING_IOPS, TAKES_PER_S if depth < 100 else 100)
        taken = depth
        fio.run(bench.unstun.target("deep"), Load(TOP_SIZE, 0, rw="write", block=1 << 20, depth=8), bench.folder)
        at_depth(bench, depth)


def at_depth(bench, depth):
    """First with fresh first writes beside the twin; then reads and overwrites are counted."""
    ratios = []
    for _ in range(bench.rounds):
        load = Load(SIZE, bench.seconds)
        theirs = fio.run(bench.unstun.target("twin"), load, bench.folder)
        ours = fio.run(bench.unstun.target("deep"), load, bench.folder)
        ratios.append(ours.iops / theirs.iops)
    deep = f"native, {depth} snapshots deep" if depth > 1 else "native, 1 snapshot deep"
    device_ios(bench, SIZE, f"{deep}: device I/Os per guest I/O", 0.02)
    bench.report.at_least(f"{deep}: IOPS 70/30, of a twin without", Spread(ratios), 0.95)
