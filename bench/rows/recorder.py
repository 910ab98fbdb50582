"""What the recorder costs: the CPU per I/O with it and without; and five hundred VMs, with the overview of the console."""

import shutil
import subprocess
import time

from bench import fio
from bench.fio import Load
from bench.machine import cpu_s, memory_bytes
from bench.report import Figure, Spread, ratios
from bench.servers import Unstun, free_port

MIB = 1 << 20
VMS = 500


class Side:
    """A daemon with the recorder or without, and the CPU per I/O of its slices."""

    def __init__(self, bench, name, options):
        self.folder = bench.folder / name
        self.unstun = Unstun(bench.unstun.binary, self.folder, options=["--cores", "1", *options])
        self.size = (256 if bench.quick else 1024) * MIB
        self.cpu_us, self.iops = [], []
        self.unstun.create("web", [self.size], "redo")
        fio.fill(self.unstun.target("web"), self.size, self.folder)

    def slice(self, load):
        before = cpu_s(self.unstun.pid)
        result = fio.run(self.unstun.target("web"), load, self.folder)
        self.cpu_us.append((cpu_s(self.unstun.pid) - before) * 1e6 / result.ios)
        self.iops.append(result.iops)

    def stop(self):
        self.unstun.stop()
        shutil.rmtree(self.folder)


def measure(bench):
    with_it, without = Side(bench, "recorder", []), Side(bench, "no-recorder", ["--no-recorder"])
    # Many short slices: the differences are small.
    for number in range(4 * bench.rounds):
        for side in [with_it, without] if number % 2 == 0 else [without, with_it]:
            side.slice(Load(side.size, bench.seconds, depth=8))
    note = f"{Spread(with_it.cpu_us).middle:.2f} us and {Spread(without.cpu_us).middle:.2f} us"
    bench.report.at_most("CPU per I/O with the recorder, of that without", ratios(with_it.cpu_us, without.cpu_us), 1.01, note)
    with_it.stop()
    without.stop()
    many(bench)


def many(bench):
    """The daemon with many VMs: its CPU and memory while it records them, and the time of the overview."""
    folder, vms, port = bench.folder / "many", 50 if bench.quick else VMS, free_port()
    cpu, memory = [], []
    for options in [["--no-recorder"], []]:
        unstun = Unstun(bench.unstun.binary, folder, options=["--web", f"127.0.0.1:{port}", *options])
        with unstun:
            known = len(unstun.json("vm", "list"))
            for number in range(known, vms):
                unstun.create(f"vm{number}", [16 * MIB], "native")
            seconds = 10 if bench.quick else 30
            before = cpu_s(unstun.pid)
            time.sleep(seconds)
            cpu.append((cpu_s(unstun.pid) - before) / seconds * 100)
            memory.append(memory_bytes(unstun.pid, "VmRSS") / MIB)
            overview = Spread([first_byte_to_last_ms(unstun, port) for _ in range(5)])
    figure = Figure(f"{vms} idle VMs: CPU with the recorder", "", f"{cpu[1]:.1f} % of a core", None, f"{cpu[0]:.1f} % without")
    bench.report.add(figure)
    figure = Figure(f"{vms} idle VMs: memory with the recorder", "", f"{memory[1]:.0f} MiB", None, f"{memory[0]:.0f} MiB without")
    bench.report.add(figure)
    bench.report.at_most(f"overview of {vms} VMs, ms until its last byte", overview, 300, digits=0)
    shutil.rmtree(folder)


def first_byte_to_last_ms(unstun, port):
    """A link logs in once, and leads to the overview."""
    [url] = unstun.json("console")["urls"]
    jar = unstun.datastore / "cookies"
    curl = ["curl", "--silent", "--fail", "--location", "--cookie-jar", str(jar), "--cookie", str(jar), "--output", "/dev/null"]
    subprocess.run([*curl, url], check=True, stdin=subprocess.DEVNULL)
    began = time.monotonic()
    subprocess.run([*curl, f"http://127.0.0.1:{port}/"], check=True, stdin=subprocess.DEVNULL)
    return (time.monotonic() - began) * 1000
