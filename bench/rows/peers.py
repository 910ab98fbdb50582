"""What a snapshot costs each stack by its own means: `unstun lab compare` does the same work on all of them in turns."""

import os
import subprocess
from contextlib import contextmanager

from bench import fio
from bench.fio import Load
from bench.lab import compare
from bench.report import Figure, Spread
from bench.servers import Nbdkit

SIZE = 2 << 30
# Both copies in full, and XFS's own.
XFS_SIZE = 5 << 30
# Each of the times before, with and after the snapshot. A commit may last six times as long.
FRESH_S, WRITES_S = 10, 8
QCOW2 = {"qemu": "qcow2 overlay, 64 KiB clusters", "qemu-extl2": "qcow2 overlay, extended_l2, 128 KiB"}


def measure(bench):
    fresh(bench)
    stacks = writes(bench, bench.folder / "lab", "native", "redo", *QCOW2)
    first_writes(bench, stacks)
    commits(bench, stacks)


def fresh(bench):
    options = ["--rounds", bench.rounds_few, "--seconds", FRESH_S, "--size", bench.size]
    stacks = compare(bench, bench.folder / "lab", ["redo", "qemu"], *options)
    note = f"fresh qcow2 overlay: {stacks['qemu'].of_before('snapshot').text()}"
    ours = stacks["redo"].of_before("snapshot")
    bench.report.at_least(f"fresh snapshot, first {FRESH_S} s, of before", ours, 0.8, note)


def writes(bench, folder, *subjects):
    """Random writes alone, which are first writes until a block is hit again."""
    options = ["--rounds", bench.rounds_few, "--seconds", WRITES_S, "--size", SIZE, "--read", 0]
    return compare(bench, folder, subjects, *options)


def first_writes(bench, stacks):
    native = stacks["native"].of_before("snapshot")
    note = rate(stacks["native"])
    bench.report.at_least("native, peers' row: first writes after a snapshot, of before", native, 0.95, note)
    for name, what in QCOW2.items():
        beside(bench, native, what, stacks[name].of_before("snapshot"), rate(stacks[name]))
    beside(bench, native, "nbdkit cow", nbdkit_cow(bench), "page cache")
    try:
        copies = reflinks(bench)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as problem:
        bench.report.add(Figure("the same, reflink on XFS", "", f"not measured: {problem}"))
    else:
        beside(bench, native, "reflink on XFS", copies.of_before("snapshot"), rate(copies))


def rate(stack):
    return f"{stack.value('snapshot', 'iops').middle:.0f} IOPS"


def beside(bench, ours, what, theirs, note):
    met = ours.middle > theirs.middle
    bench.report.add(Figure(f"the same, {what}", f"below {ours.middle:.2f}", theirs.text(), met, note))


def commits(bench, stacks):
    """QEMU's active commit ends when what the guest writes meanwhile can be merged in a pause."""
    rows = {"redo": "commit under unthrottled 4 KiB random writes, 2 GiB", "qemu": "the same, qcow2's active commit"}
    for name, what in rows.items():
        ended, took = stacks[name].commit()
        aim, met = ("ends", ended) if name == "redo" else ("", None)
        bench.report.add(Figure(what, aim, took, met, f"guest at {stacks[name].share('commit')} of before"))


def nbdkit_cow(bench):
    """By fio, because nbdkit copies on write from its start: its clients see no take."""
    base, load = bench.unstun.layer_files("web")[0], Load(SIZE, WRITES_S, rw="randwrite")
    ratios = []
    for _ in range(bench.rounds_few):
        with Nbdkit(base, bench.folder) as peer:
            before = fio.run(peer.target, load, bench.folder).iops
            peer.settle()
        with Nbdkit(base, bench.folder, ["cow"]) as peer:
            ratios.append(fio.run(peer.target, load, bench.folder).iops / before)
    return Spread(ratios)


def reflinks(bench):
    if os.geteuid() != 0:
        raise RuntimeError("needs root for a loop mount")
    with xfs(bench.folder) as mount:
        return writes(bench, mount, "reflink")["reflink"]


@contextmanager
def xfs(folder):
    """A mounted XFS on a file that was written whole, so that it pays for no growth of the file below."""
    image, mount = folder / "xfs.img", folder / "xfs"
    mount.mkdir()
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={image}", "bs=1M", f"count={XFS_SIZE >> 20}", "oflag=direct", "status=none"], check=True
    )
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    losetup = ["losetup", "--direct-io=on", "--find", "--show", image]
    device = subprocess.run(losetup, check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount", device, mount], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["umount", mount], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
        image.unlink()
        mount.rmdir()
