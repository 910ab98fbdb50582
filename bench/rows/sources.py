"""A native disk over a raw image, beside one of its own blocks and beside a qcow2 overlay on the same image: reads of the image,
first writes, and what is left of it all once the image is copied. Time to the first byte, by the size of the image."""

import subprocess
import time

from bench import fio
from bench.fio import Load, Target
from bench.report import Figure, Spread, ratios
from bench.servers import Server, serves

MIB = 1 << 20
GIB = 1 << 30
SIZE = 2 * GIB
# Sparse, with as much data as SIZE.
LARGE = 512 * GIB


class Overlay(Server):
    """QEMU's export of a qcow2 file over the image."""

    def __init__(self, image, name, folder):
        self.file, socket = folder / f"{name}.qcow2", folder / f"{name}.sock"
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image, self.file]
        subprocess.run(create, check=True, stdin=subprocess.DEVNULL)
        self.target = Target(uri=f"nbd+unix:///?socket={socket}")
        command = ["qemu-nbd", "--persistent", "--shared=4", "--format=qcow2", "--cache=none", "--aio=io_uring"]
        super().__init__("qemu-nbd", [*command, f"--socket={socket}", self.file], folder / f"{name}.log")
        self.wait_until(lambda: serves(self.target))


def image(path, size):
    """A raw image, of which SIZE bytes are data."""
    with path.open("wb") as file:
        file.truncate(size)
    fio.fill(Target(file=str(path)), SIZE, path.parent)


def measure(bench):
    raw = bench.folder / "image.raw"
    image(raw, SIZE)
    bench.unstun.json("vm", "create", "plain", "--store=native", f"--disk={SIZE}")
    fio.fill(bench.unstun.target("plain"), SIZE, bench.folder)
    rates = {}
    for number in range(bench.rounds):
        compare(bench, raw, number, rates)
    report(bench, rates)
    copied(bench, raw)
    first_byte(bench)


def compare(bench, raw, number, rates):
    """In turns. First writes need a new disk each time."""
    over = f"over-{number}"
    bench.unstun.json("vm", "create", over, "--store=native", f"--disk=from={raw},copy=no")
    with Overlay(raw, over, bench.folder) as overlay:
        targets = {"over": bench.unstun.target(over), "plain": bench.unstun.target("plain"), "qcow2": overlay.target}
        for what, load in {
            "reads": Load(SIZE, bench.seconds, rw="randread"),
            "first writes": Load(SIZE, bench.seconds, rw="randwrite", once=True),
            "70/30 after them": Load(SIZE, bench.seconds),
        }.items():
            for name, target in targets.items():
                rates.setdefault((name, what), []).append(fio.run(target, load, bench.folder).iops)
    overlay.file.unlink()
    bench.unstun.json("vm", "remove", over, "--delete-disks", "--purge", "--yes")


def report(bench, rates):
    for _, what in [key for key in rates if key[0] == "over"]:
        for peer, said in {"plain": "a disk without an image", "qcow2": "a qcow2 overlay on it"}.items():
            shown = ratios(rates["over", what], rates[peer, what])
            note = f"{Spread(rates['over', what]).text(0)} and {Spread(rates[peer, what]).text(0)} IOPS"
            bench.report.add(Figure(f"disk over a raw image, {what}, beside {said}", "", shown.text(), None, note))


def copied(bench, raw):
    """The copy in the background, and the disk after it."""
    began = time.monotonic()
    bench.unstun.json("vm", "create", "copied", "--store=native", f"--disk=from={raw}")
    while any(source["state"] != "copied" for source in bench.unstun.json("source", "list")):
        time.sleep(0.1)
    rate = SIZE / MIB / (time.monotonic() - began)
    bench.report.add(Figure("copy of an image into the store, without a guest", "", f"{rate:.0f} MiB/s", None))


def first_byte(bench):
    raw = bench.folder / "large.raw"
    image(raw, LARGE)
    took = []
    for number in range(bench.rounds):
        began = time.monotonic()
        bench.unstun.json("vm", "create", f"large-{number}", "--store=native", f"--disk=from={raw},copy=no")
        command = ["qemu-io", "-r", "-f", "raw", "-c", "read 0 4k", bench.unstun.target(f"large-{number}").uri]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        took.append(1000 * (time.monotonic() - began))
    shown = f"{Spread(took).text(0)} ms"
    bench.report.add(Figure("image of 512 GiB: from `vm create --disk from=` to the first byte at a client", "", shown, None))
