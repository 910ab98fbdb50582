"""A native disk that is snapshotted every second while its guest works: nothing may drift."""

import time
from statistics import mean

from bench import fio
from bench.fio import Load
from bench.machine import memory_bytes
from bench.report import Figure

MIB = 1 << 20
SIZE = 1 << 30
# Snapshots themselves are remembered: some hundred bytes each.
GROWTH_MAX = 16 * MIB


def measure(bench):
    seconds = 60 if bench.quick else 600
    unstun = bench.unstun
    unstun.create("hourly", [SIZE], "native")
    fio.fill(unstun.target("hourly"), SIZE, bench.folder)
    running = fio.Running(unstun.target("hourly"), Load(SIZE, seconds, extra=fio.seconds_log(bench.folder)), bench.folder)
    resident, takes_ms = [], []
    began = time.monotonic()
    for number in range(seconds - 1):
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))
        takes_ms.append(unstun.rest.take("hourly", f"t{number}")[1])
        resident.append(memory_bytes(unstun.pid, "VmRSS"))
    running.wait()
    report(bench, fio.by_second(bench.folder), resident, takes_ms)
    unstun.remove("hourly")


def report(bench, iops, resident, takes_ms):
    count = len(resident)
    ratio = mean(last_fifth(iops)) / mean(first_fifth(iops))
    growth = max(last_fifth(resident)) - max(first_fifth(resident))
    what = f"native, a take every second, {count} s, under load"
    note = f"takes {max(takes_ms):.1f} ms at most"
    bench.report.add(Figure(f"{what}: IOPS, last fifth of first", ">= 0.95", f"{ratio:.2f}", ratio >= 0.95, note))
    note = f"peak of the last fifth {max(last_fifth(resident)) / MIB:.0f} MiB"
    measured = f"{growth / MIB:+.1f} MiB"
    bench.report.add(Figure(f"{what}: memory", f"<= +{GROWTH_MAX // MIB} MiB", measured, growth <= GROWTH_MAX, note))


def first_fifth(values):
    return values[: max(1, len(values) // 5)]


def last_fifth(values):
    return values[-max(1, len(values) // 5) :]
