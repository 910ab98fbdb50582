"""What the kernel says about this machine, a process, and the device under a folder."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# After the command's name, which may hold spaces: fields 14 and 15 of /proc/PID/stat, counted from the third.
UTIME, STIME = 11, 12
# Of /sys/dev/block/*/stat: completed reads, writes and flushes.
READS, WRITES, FLUSHES = 0, 4, 15


def cpu_s(pid):
    """CPU time of a process with all its threads, in seconds; a tick is 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[UTIME]) + int(fields[STIME])) * TICK_S


def wakeups(pid):
    """How often its threads went from waiting to running, on their own account."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def storage_bytes(pid):
    """(read, written): what a process made the storage transfer; the page cache's hits are not in it."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def memory_bytes(pid, field):
    """A process's memory: `VmRSS` is what it has now, `VmHWM` the most it has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"no {field}")


@dataclass
class DeviceCount:
    reads: int
    writes: int
    flushes: int

    def __sub__(self, other):
        return DeviceCount(self.reads - other.reads, self.writes - other.writes, self.flushes - other.flushes)


class Device:
    """The block device a folder lives on: whole-device counters, so the machine should be quiet."""

    def __init__(self, folder):
        number = os.stat(folder).st_dev
        self.path = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")

    def exists(self):
        return self.path.exists()

    def count(self):
        fields = [int(field) for field in self.path.read_text().split()]
        return DeviceCount(fields[READS], fields[WRITES], fields[FLUSHES])


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def facts(folder):
    """Lines about the machine, for the head of the report."""
    cpu = first_line("sed", "-n", "s/^model name[^:]*: //p", "/proc/cpuinfo")
    memory_kib = int(first_line("sed", "-n", "s/^MemTotal: *\\([0-9]*\\).*/\\1/p", "/proc/meminfo"))
    mount = first_line("findmnt", "-no", "SOURCE,FSTYPE,OPTIONS", "-T", str(folder))
    peers = [
        first_line("qemu-storage-daemon", "--version"),
        first_line("nbdkit", "--version"),
        first_line("fio", "--version"),
    ]
    load = os.getloadavg()[0]
    return [
        f"CPU      {os.cpu_count()} x {cpu}",
        f"memory   {memory_kib / (1 << 20):.1f} GiB",
        f"kernel   {platform.release()}",
        f"storage  {mount}",
        f"peers    {'; '.join(peers)}",
        f"load     {load:.2f} before the start" + (" (the machine is not quiet)" if load > 0.5 else ""),
    ]
