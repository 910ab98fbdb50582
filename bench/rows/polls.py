"""How long one task keeps the core's thread from all others: by the thread's own time, as `status` says it."""

import shutil

from bench import fio
from bench.fio import Load
from bench.report import Figure
from bench.servers import Unstun

GIB = 1 << 30
LIMIT_US = 1000


def measure(bench):
    """A daemon that is killed with a journal full of records and started again, with many VMs, takes and a large commit."""
    folder = bench.folder / "polls"
    size = (1 if bench.quick else 4) * GIB
    vms = 50 if bench.quick else 500
    with Unstun(bench.unstun.binary, folder) as unstun:
        unstun.create("busy", [size], "native")
        for number in range(vms):
            unstun.create(f"idle{number}", [GIB], "native")
        fio.run(unstun.target("busy"), Load(size, bench.seconds * 2, rw="randwrite"), bench.folder)
        for number in range(3):
            unstun.take("busy", f"s{number}")
            fio.run(unstun.target("busy"), Load(size, bench.seconds, rw="randwrite"), bench.folder)
        report(bench, unstun, "load and takes")
        unstun.commit_all("busy")
        unstun.json("vm", "list")
        unstun.json("space", "busy")
        report(bench, unstun, f"the same, a commit, and a list of {vms} VMs")
        fio.run(unstun.target("busy"), Load(size, bench.seconds, rw="randwrite"), bench.folder)
        unstun.process.kill()
        unstun.process.wait()
    with Unstun(bench.unstun.binary, folder, waits_for="busy/disk0") as unstun:
        report(bench, unstun, "start after a kill")
    shutil.rmtree(folder)


def report(bench, unstun, what):
    status = unstun.json("status")
    longest, count = status["longest_poll_us"], status["long_polls"]
    note = f"{count} of more than {LIMIT_US / 1000:.0f} ms; the longest of the task of {status['longest_poll_task']}"
    measured = f"{longest / 1000:.2f} ms"
    bench.report.add(Figure(f"longest poll, {what}", f"<= {LIMIT_US / 1000:.0f} ms", measured, longest <= LIMIT_US, note))
