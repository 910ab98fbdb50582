"""What a commit costs the guest, and whether it ends."""

import time

from bench import fio
from bench.fio import Load
from bench.report import Figure, Spread
from bench.servers import Qmp, QemuStorageDaemon

HOLD_S = 8
# A commit that has not ended by then counts as one that does not.
PATIENCE_S = 180
BUSY_SIZE = 2 << 30
PEER_PATIENCE_S = 60


def measure(bench):
    default_yield(bench)
    under_writes(bench)
    if not bench.quick:
        peer_under_writes(bench)


def default_yield(bench):
    """The load runs from the commit's start to its end and is measured over exactly that time."""
    target = bench.unstun.target("web")
    rates, delays, times = [], [], []
    for number in range(bench.rounds_few):
        name = f"commit-{number}"
        before = fio.run(target, Load(bench.size, bench.seconds), bench.folder)
        bench.unstun.take("web", name)
        fio.run(target, Load(bench.size, HOLD_S), bench.folder)
        began = time.monotonic()
        job, during = commit_under(bench, "web", name, Load(bench.size, PATIENCE_S))
        if job is None:
            bench.report.add(Figure("commit at the default yield", "ends", f"not after {PATIENCE_S} s", False))
            return
        times.append(time.monotonic() - began)
        rates.append(during.iops / before.iops)
        delays.append(during.p99_us / before.p99_us)
    took = f"{Spread(times).middle:.0f} s for what {HOLD_S} s wrote"
    bench.report.at_least("IOPS while committing, of before", Spread(rates), 0.7, took)
    bench.report.at_most("p99 while committing, of before", Spread(delays), 2)


def commit_under(bench, vm, name, load):
    running = fio.Running(bench.unstun.target(vm), load, bench.folder)
    try:
        job = bench.unstun.wait_for_job(bench.unstun.start_commit(vm, name), PATIENCE_S - 5)
    finally:
        during = running.stop()
    return job, during


def under_writes(bench):
    bench.unstun.create("busy", [BUSY_SIZE])
    target = bench.unstun.target("busy")
    fio.fill(target, BUSY_SIZE, bench.folder)
    before = fio.run(target, Load(BUSY_SIZE, bench.seconds, rw="randwrite"), bench.folder)
    bench.unstun.take("busy", "held")
    fio.run(target, Load(BUSY_SIZE, HOLD_S, rw="randwrite"), bench.folder)
    began = time.monotonic()
    job, during = commit_under(bench, "busy", "held", Load(BUSY_SIZE, PATIENCE_S, rw="randwrite"))
    what = "commit under unthrottled 4 KiB random writes, 2 GiB"
    if job is None:
        bench.report.add(Figure(what, "ends", f"not after {PATIENCE_S} s", False))
        return
    moved, held = job["bytes_done"] / (1 << 20), job["bytes_total"] / (1 << 20)
    measured = f"{job['state']} after {time.monotonic() - began:.1f} s, moved {moved:.0f} of {held:.0f} MiB held"
    note = f"guest at {during.iops / before.iops:.2f} of before"
    bench.report.add(Figure(what, "ends, moved <= held", measured, job["state"] == "done" and moved <= held, note))
    bench.unstun.json("vm", "remove", "busy", "--delete-disks", "--purge", "--yes")


def peer_under_writes(bench):
    """QEMU's active commit of a qcow2 overlay: `ready` is when the rest could be merged in a pause."""
    base, overlay = bench.folder / "peer-base.raw", bench.folder / "peer-overlay.qcow2"
    with base.open("wb") as file:
        file.truncate(BUSY_SIZE)
    load = Load(BUSY_SIZE, HOLD_S, rw="randwrite")
    with QemuStorageDaemon(base, bench.folder) as peer:
        fio.fill(peer.target(), BUSY_SIZE, bench.folder)
        before = fio.run(peer.target(), Load(BUSY_SIZE, bench.seconds, rw="randwrite"), bench.folder)
    with QemuStorageDaemon(base, bench.folder, overlay) as peer:
        fio.run(peer.target(), load, bench.folder)
        qmp = Qmp(peer.monitor)
        running = fio.Running(peer.target(), Load(BUSY_SIZE, PEER_PATIENCE_S + 30, rw="randwrite"), bench.folder)
        began = time.monotonic()
        qmp.call("block-commit", **{"job-id": "commit", "device": "overlay"})
        state = "running"
        while state == "running" and time.monotonic() - began < PEER_PATIENCE_S:
            time.sleep(0.25)
            state = next(job["status"] for job in qmp.call("query-jobs") if job["id"] == "commit")
        took = time.monotonic() - began
        during = running.stop()
        qmp.call("job-cancel", id="commit")
        qmp.close()
    base.unlink()
    overlay.unlink()
    ended = f"{state} after {took:.0f} s" if state != "running" else f"not ended after {took:.0f} s"
    note = f"guest at {during.iops / before.iops:.2f} of before"
    bench.report.add(Figure("the same, qemu-storage-daemon's active commit", "", ended, note=note))
