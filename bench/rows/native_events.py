"""A native disk of 200 GiB whose whole map exists: what take, revert, clone and drop cost, and a recovery."""

import time

from bench import fio
from bench.fio import Load
from bench.native_store import StoreFile
from bench.report import Figure, Spread
from bench.servers import Unstun

GIB = 1 << 30
SIZE = 200 * GIB
SMALL_SIZE = 1 * GIB
# One block written in each such stretch: every leaf of the map has two.
STRETCH = 126 * 4096
OPERATIONS = ("take", "clone", "revert", "drop")
# Between two operations.
WRITES = 500
# First writes ahead of a kill, below what makes a checkpoint of themselves.
RECORDS = 200_000
FILL_S = 60


def measure(bench):
    folder = bench.folder / "large"
    with Unstun(bench.unstun.binary, folder) as unstun:
        for vm, size in (("large", SIZE), ("small", SMALL_SIZE)):
            unstun.create(vm, [size], "native")
        scatter(bench, unstun.target("large"))
        fio.fill(unstun.target("small"), SMALL_SIZE, bench.folder)
    # At rest: all of it is in the map.
    with Unstun(bench.unstun.binary, folder) as unstun:
        operations(bench, unstun)
        fill_journal(bench, unstun)
    recover(bench, folder)


def scatter(bench, target):
    """A block of every stretch, in order: what is between stays a hole, so that it fits any disk."""
    load = Load(SIZE, 0, rw=f"write:{(STRETCH - 4096) >> 10}k", extra=[f"--number_ios={SIZE // STRETCH}"])
    fio.run(target, load, bench.folder)


def operations(bench, unstun):
    large, small = cycle(bench, unstun, "large"), cycle(bench, unstun, "small")
    for name in OPERATIONS:
        took = Spread(large[name])
        note = f"1 GiB disk {Spread(small[name]).text(1)}; a call over REST"
        if name == "take":
            note += f"; stun {max(large['stun'])} us"
        what = f"native, {name}, ms, 200 GiB disk, all of its map there"
        bench.report.at_most(what, took, 10, note, digits=1)


def cycle(bench, unstun, vm):
    """Each operation after some writes, in turn."""
    times = {name: [] for name in (*OPERATIONS, "stun")}
    load = Load(SMALL_SIZE, 0, rw="randwrite", extra=[f"--number_ios={WRITES}"])
    rest = unstun.rest
    for number in range(bench.takes // 2):
        name = f"s{number}"
        fio.run(unstun.target(vm), load, bench.folder)
        answer, took = rest.take(vm, name)
        times["take"].append(took)
        times["stun"].append(answer["stun_us"])
        times["clone"].append(rest.clone(vm, name, "clone")[1])
        unstun.remove("clone")
        fio.run(unstun.target(vm), load, bench.folder)
        times["revert"].append(rest.revert(vm, name)[1])
        # fio, the only client, has ended.
        unstun.json("vm", "open", vm)
        job, took = rest.drop(vm, name)
        times["drop"].append(took)
        unstun.wait_for_job(job["id"], FILL_S)
    return times


def fill_journal(bench, unstun):
    """First as many records as a checkpoint leaves alone, then a page for each flush, to half of the ring."""
    target = unstun.target("large")
    align = f"--blockalign={STRETCH}"
    before = fio.run(target, Load(SIZE, 5, rw="randwrite", extra=[align]), bench.folder).iops
    unstun.take("large", "base")
    load = Load(SIZE, 0, rw="randwrite", extra=[f"--number_ios={RECORDS}", align])
    fresh = Spread([fio.run(target, load, bench.folder).iops / before])
    note = f"{RECORDS} writes all over it, each in another page of the map"
    bench.report.add(Figure("native, first writes on 200 GiB, of before", "", fresh.text(), note=note))
    load = Load(SIZE, FILL_S, rw="randwrite", extra=["--fsync=1", align])
    running = fio.Running(target, load, bench.folder)
    with StoreFile(unstun.store_file()) as store:
        deadline = time.monotonic() + FILL_S - 2
        while store.journal()[0] < store.journal()[1] * 0.48 and time.monotonic() < deadline:
            time.sleep(0.05)
        unstun.process.kill()
        unstun.process.wait()
        pages, ring = store.journal()
    running.process.kill()
    running.process.communicate()
    print(f"    killed with {pages} of {ring} journal pages in use", flush=True)


def recover(bench, folder):
    """From the start of the process to a client that is attached."""
    with StoreFile(folder / "store.unstun") as store:
        pages, ring = store.journal()
    began = time.monotonic()
    with Unstun(bench.unstun.binary, folder, waits_for="large/disk0") as unstun:
        took = time.monotonic() - began
        fio.run(unstun.target("large"), Load(SIZE, 1, rw="randread"), bench.folder)
    what = "native, recovery after kill -9 under load, 200 GiB disk, s"
    note = f"{pages} of the journal's {ring} pages replayed"
    bench.report.at_most(what, Spread([took]), 1, note)
