"""Random first writes all over a large native disk, on modelled storage in virtual time: no write may wait for a checkpoint."""

from pathlib import Path
from statistics import mean

from bench.lab import lab
from bench.report import Figure

GIB = 1 << 30
# Storage model, the longest write that is allowed in any case, in microseconds, and the time in seconds: a minute of
# NVMe is ten million writes.
STORAGE = [("sas-10k-stripe", 500_000, 600), ("sata-ssd", 50_000, 120), ("nvme", 50_000, 120)]
# Longest write, of the p99 without a snapshot; lowest rate of ten seconds, of the mean.
LONGEST_MAX, LOWEST_MIN = 4, 0.7
WINDOW = 10

EXPERIMENT = Path(__file__).parent.with_name("first_writes.toml")


def measure(bench):
    size = (64 if bench.quick else 512) * GIB
    path = bench.folder / EXPERIMENT.name
    for storage, floor_us, seconds in STORAGE:
        seconds = seconds // 4 if bench.quick else seconds
        path.write_text(EXPERIMENT.read_text().format(size=size, seconds=seconds))
        record = lab(bench, "run", path, "--subject", "native", "--storage", storage)
        report(bench, f"first writes, {storage}, {size // GIB} GiB, {seconds} s", record, floor_us)


def samples(record, phase):
    spans = [span for span in record["phases"] if span["phase"] == phase]
    [span] = sorted(spans, key=lambda span: span["end_us"] - span["begin_us"])[-1:]
    return [s for s in record["samples"] if span["begin_us"] <= s["at_us"] < span["end_us"]]


def writes_per_s(some):
    return [sample["writes"] * 1e6 / sample["interval_us"] for sample in some]


def report(bench, what, record, floor_us):
    before, with_snapshot = samples(record, "baseline"), samples(record, "snapshot")
    usual_us = max(sample["write_latency"]["p99_us"] for sample in before)
    longest_us = max(sample["write_latency"]["max_us"] for sample in with_snapshot)
    limit_us = max(LONGEST_MAX * usual_us, floor_us)
    rates = writes_per_s(with_snapshot)
    windows = [sum(rates[at : at + WINDOW]) / WINDOW for at in range(len(rates) - WINDOW + 1)]
    note = f"{mean(rates):.0f} writes/s, {mean(rates) / mean(writes_per_s(before)):.2f} of before"
    measured = f"{longest_us / 1000:.0f} ms"
    bench.report.add(Figure(f"{what}: longest write", f"<= {limit_us / 1000:.0f} ms", measured, longest_us <= limit_us, note))
    lowest = min(windows) / mean(rates)
    bench.report.add(Figure(f"{what}: lowest rate of {WINDOW} s, of the mean", f">= {LOWEST_MIN}", f"{lowest:.2f}", lowest >= LOWEST_MIN))
