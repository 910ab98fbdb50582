"""How long a guest is held back: by the engine's own account, and by the longest gap a writer on each disk sees."""

import signal
import subprocess
import time
from bisect import bisect_left, bisect_right
from datetime import datetime

from bench import fio
from bench.report import Figure

DISKS = 12
DISK_SIZE = 64 << 20
# The probes' resolution: the largest latency of each window of this length is kept.
PROBE_MS = 10
# Around an event, and equally long where nothing happens.
BEFORE_MS, AFTER_MS = 30, 170
QUIET_S = 0.5
# One cycle's load between take and commit.
HOLD_S = 0.2


def measure(bench):
    of_store(bench, "redo")


def of_store(bench, store):
    unstun = bench.unstun
    unstun.create("twelve", [DISK_SIZE] * DISKS, store)
    for disk in range(DISKS):
        fio.fill(unstun.target("twelve", disk), DISK_SIZE, bench.folder)
    probes = start_probes(bench)
    quiet_ms = []
    try:
        time.sleep(2)
        for number in range(bench.takes):
            quiet_ms.append(time.time() * 1000)
            time.sleep(QUIET_S)
            unstun.take("twelve", f"t{number}")
            time.sleep(HOLD_S)
            unstun.commit("twelve", f"t{number}")
            time.sleep(0.1)
    finally:
        probes.stop()
    events = unstun.json("events", "twelve")
    unstun.remove("twelve")
    kind = "" if store == "redo" else f"{store}: "
    inside(bench, events, kind)
    outside(bench, events, quiet_ms, kind)


def start_probes(bench):
    """One writer at depth 1 on each disk, unthrottled: together they are the load."""
    job_file = bench.folder / "probes.fio"
    lines = [
        "[global]", "ioengine=nbd", "thread=1", "rw=randwrite", "bs=4k", "iodepth=1", f"size={DISK_SIZE}",
        "norandommap=1", "randrepeat=0", "time_based=1", f"runtime={60 + bench.takes * 10}", "per_job_logs=1",
        "disable_slat=1", "disable_clat=1", f"log_avg_msec={PROBE_MS}", "log_max_value=1", "log_unix_epoch=1",
    ]  # fmt: skip
    for disk in range(DISKS):
        uri = bench.unstun.target("twelve", disk).uri
        lines += [f"[disk{disk}]", f"uri={uri}", f"write_lat_log={bench.folder}/gap{disk}"]
    job_file.write_text("\n".join(lines) + "\n")
    for old in bench.folder.glob("gap*.log"):
        old.unlink()
    return Probes(job_file, bench.folder)


class Probes:
    """fio on all disks. After SIGINT it writes its logs; its report is not read."""

    def __init__(self, job_file, folder):
        command = ["fio", str(job_file), f"--output={folder}/probes.txt"]
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(fio.PATIENCE_S)


def inside(bench, events, kind):
    takes = [event["stun_us"] for event in events if event["operation"] == "take"]
    others = [event["stun_us"] for event in events if event["operation"] in ("commit_start", "commit")]
    worst = max(takes + others)
    measured = f"worst {worst} us: takes {max(takes)}, commits {max(others, default=0)}"
    what = f"{kind}stun in the engine, {DISKS} disks, {len(takes)} takes and commits"
    bench.report.add(Figure(what, "<= 1000 us", measured, worst <= 1000))


def read_gaps(folder, disk):
    """(end of window in ms since the epoch, longest latency in ms), in order of time."""
    [log] = folder.glob(f"gap{disk}_lat.*.log")
    rows = (line.split(",") for line in log.read_text().splitlines())
    return sorted((int(row[0]), int(row[1]) / 1e6) for row in rows)


def longest(gaps, times, start_ms, end_ms):
    low, high = bisect_left(times, start_ms), bisect_right(times, end_ms)
    return max((gap for _, gap in gaps[low:high]), default=0.0)


def p99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def event_ms(event):
    return datetime.fromisoformat(event["time"]).timestamp() * 1000


def outside(bench, events, quiet_ms, label):
    span = BEFORE_MS + AFTER_MS
    moments = {
        kind: [event_ms(event) for event in events if event["operation"] == kind]
        for kind in ("take", "commit_start", "commit")
    }
    with_take, without, others = [], [], []
    for disk in range(DISKS):
        gaps = read_gaps(bench.folder, disk)
        times = [at for at, _ in gaps]
        with_take += [longest(gaps, times, at - BEFORE_MS, at + AFTER_MS) for at in moments["take"]]
        # The first half of the quiet time: a window of the same length that ends well before the take.
        without += [longest(gaps, times, at + 100, at + 100 + span) for at in quiet_ms]
        for kind in ("commit_start", "commit"):
            others += [longest(gaps, times, at - BEFORE_MS, at + AFTER_MS) for at in moments[kind]]
    extra = p99(with_take) - p99(without)
    measured = f"{extra:+.2f} ms (p99 {p99(with_take):.2f} with, {p99(without):.2f} without)"
    note = f"worst {max(with_take):.2f} with, {max(without):.2f} without"
    if others:
        note += f"; around commits p99 {p99(others):.2f}"
    what = f"{label}longest gap of a QD1 writer per disk, around a take"
    bench.report.add(Figure(what, "<= +2 ms at p99", measured, extra <= 2, note))
