"""Bounded load with fio, and what came out of it."""

import json
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# Seconds beyond the length of a run, for connecting and ending.
PATIENCE_S = 60


@dataclass
class Target:
    """Where a load goes: an NBD export, or a file with O_DIRECT through io_uring."""

    uri: str = ""
    file: str = ""

    def options(self):
        if self.uri:
            return ["--ioengine=nbd", f"--uri={self.uri}"]
        return ["--ioengine=io_uring", "--direct=1", f"--filename={self.file}"]


@dataclass
class Load:
    """One fio job; by default 4 KiB random I/O."""

    size: int
    seconds: float = 4
    rw: str = "randrw"
    read_percent: int = 70
    depth: int = 32
    jobs: int = 1
    block: int = 4096
    offset: int = 0
    # Visit no block twice, so that after a take every write is a first write.
    once: bool = False
    extra: list = field(default_factory=list)

    def options(self):
        mix = [f"--rwmixread={self.read_percent}"] if self.rw == "randrw" else []
        duration = ["--time_based=1", f"--runtime={self.seconds}"] if self.seconds else []
        return [
            "--name=load", "--thread=1", "--group_reporting=1", f"--rw={self.rw}", f"--bs={self.block}",
            f"--iodepth={self.depth}", f"--numjobs={self.jobs}", f"--size={self.size}", f"--offset={self.offset}",
            "--randrepeat=0", f"--norandommap={0 if self.once else 1}", *mix, *duration, *self.extra,
        ]  # fmt: skip


@dataclass
class Result:
    reads: int
    writes: int
    iops: float
    # Of reads and writes together, the worse of the two, in microseconds.
    p99_us: float
    max_us: float
    # Processor time of fio itself for each I/O, in microseconds, without interrupts.
    processor_us: float

    @property
    def ios(self):
        return self.reads + self.writes


class Running:
    """fio at work; `stop` ends it early and keeps what it measured."""

    def __init__(self, target, load, folder):
        self.report = Path(folder) / "fio.json"
        self.report.unlink(missing_ok=True)
        self.seconds = load.seconds
        command = ["fio", *load.options(), *target.options(), "--output-format=json", f"--output={self.report}"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self):
        try:
            _, errors = self.process.communicate(timeout=(self.seconds or 600) + PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError("fio did not end in time: the server hangs") from None
        text = self.report.read_text()
        # Connecting is announced before the report.
        report = json.loads(text[text.index("{") :])
        job = report["jobs"][0]
        if job["error"]:
            raise RuntimeError(f"fio: error {job['error']}: {errors.decode()}")
        return parse(job)


def parse(job):
    sides = [job["read"], job["write"]]
    busy = [side for side in sides if side["total_ios"]]
    ios = sum(side["total_ios"] for side in sides)
    processor_ms = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"]

    def worst_us(value):
        return max((value(side["clat_ns"]) / 1000 for side in busy), default=0.0)

    return Result(
        reads=sides[0]["total_ios"],
        writes=sides[1]["total_ios"],
        iops=sum(side["iops"] for side in sides),
        p99_us=worst_us(lambda clat: clat["percentile"]["99.000000"]),
        max_us=worst_us(lambda clat: clat["max"]),
        processor_us=processor_ms * 1000 / max(ios, 1),
    )


def during(target, load, folder, operation, lead_s=0.5):
    """(What the operation returns, its seconds, the result of a load that begins `lead_s` before it and ends with it)."""
    running = Running(target, load, folder)
    time.sleep(lead_s)
    began = time.monotonic()
    try:
        returned = operation()
        took = time.monotonic() - began
    finally:
        result = running.stop()
    return returned, took, result


def seconds_log(folder):
    """Options with which `by_second` finds the IOPS of each second."""
    for old in Path(folder).glob("seconds_iops*.log"):
        old.unlink()
    return ["--write_iops_log=seconds", "--log_avg_msec=1000"]


def by_second(folder):
    [log] = Path(folder).glob("seconds_iops*.log")
    seconds = {}
    for line in log.read_text().splitlines():
        at_ms, iops = (int(field) for field in line.split(",")[:2])
        second = round(at_ms / 1000)
        seconds[second] = seconds.get(second, 0) + iops
    return [seconds[second] for second in sorted(seconds)]


def run(target, load, folder):
    return Running(target, load, folder).wait()


def fill(target, size, folder):
    """Writes everything once, so that no later write meets a hole."""
    run(target, Load(size=size, seconds=0, rw="write", block=1 << 20, depth=8), folder)
