"""Memory of the daemon over a disk of 100 GiB with 32 layers that each hold all of it, in pieces of 4 KiB out of order."""

import shutil
import subprocess
from array import array

from bench import fio
from bench.fio import Load
from bench.machine import memory_bytes
from bench.report import Figure
from bench.servers import Unstun

GIB = 1 << 30
CAP_BYTES = 256 << 20
SECTOR = 512
TABLE_ENTRIES = 4096
TABLE_SECTORS = 32
PAGE_SECTORS = 8


def measure(bench):
    """The tables are real, the data is a hole: 800 MiB a layer of 100 GiB."""
    layers = 8 if bench.quick else 32
    size = (20 if bench.quick else 100) * GIB
    with Unstun(bench.unstun.binary, bench.folder / "memory") as unstun:
        unstun.create("deep", [size])
        for number in range(layers - 1):
            unstun.take("deep", f"s{number}")
        deltas = unstun.layer_files("deep")[1:]
    populate(deltas, size // SECTOR)
    with Unstun(bench.unstun.binary, bench.folder / "memory") as unstun:
        seconds = 10 if bench.quick else 30
        fio.run(unstun.target("deep"), Load(size, seconds), bench.folder)
        for number in range(layers - 1):
            look(unstun, f"deep/disk0@s{number}", size)
        fio.run(unstun.target("deep"), Load(size, seconds), bench.folder)
        peak = memory_bytes(unstun.pid, "VmHWM")
    what = f"memory, {size // GIB} GiB disk, {layers} fully populated layers"
    measured = f"{peak / (1 << 20):.0f} MiB"
    bench.report.add(Figure(what, f"<= {CAP_BYTES >> 20} MiB", measured, peak <= CAP_BYTES, "peak of the process"))
    shutil.rmtree(bench.folder / "memory")


def look(unstun, export, size):
    """Random reads of a sealed state, so that its layer's tables and a map of its own are wanted."""
    fio.run(unstun.export(export), Load(size, 1, rw="randread"), unstun.datastore)


def populate(deltas, sectors):
    """Fills the tables of the first delta, and copies it over the others: their headers are the same."""
    first = deltas[0]
    tables = -(-sectors // TABLE_ENTRIES)
    header = bytearray(first.read_bytes()[:2048])
    start = 4 + -(-tables * 4 // SECTOR)
    start += -start % PAGE_SECTORS
    stride = TABLE_SECTORS + TABLE_ENTRIES
    pages = TABLE_ENTRIES // PAGE_SECTORS
    # Neighbouring pages never follow each other in the file: the densest map there is.
    order = [(page * 197) % pages * PAGE_SECTORS + n for page in range(pages) for n in range(PAGE_SECTORS)]
    header[28:32] = (start + tables * stride).to_bytes(4, "little")
    with first.open("r+b") as file:
        file.truncate(0)
        file.write(header)
        file.write(array("I", (start + table * stride for table in range(tables))).tobytes())
        for table in range(tables):
            base = start + table * stride
            left = min(TABLE_ENTRIES, sectors - table * TABLE_ENTRIES)
            data = base + TABLE_SECTORS
            entries = array("I", (data + n for n in order[:left]))
            entries.extend([0] * (TABLE_ENTRIES - left))
            file.seek(base * SECTOR)
            file.write(entries.tobytes())
        file.truncate((start + tables * stride) * SECTOR)
    for delta in deltas[1:]:
        subprocess.run(["cp", "--sparse=always", first, delta], check=True)
