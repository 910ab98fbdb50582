"""The first writes after a snapshot, each server by its own means: what they leave of the speed before."""

import os
import subprocess
from contextlib import contextmanager

from bench import fio
from bench.fio import Load
from bench.report import Figure, Spread
from bench.servers import Nbdkit, QemuStorageDaemon

SIZE = 1 << 30
# Both copies in full, and XFS's own.
XFS_SIZE = 5 << 29
QCOW2 = {
    "qcow2 overlay, 64 KiB clusters": "cluster_size=64k",
    "qcow2 overlay, extended_l2, 128 KiB": "cluster_size=128k,extended_l2=on",
}


def measure(bench):
    base = bench.unstun.base_file("web")
    results = {"native": [], **{name: [] for name in QCOW2}, "nbdkit cow": [], "reflink on XFS": []}
    bench.unstun.create("first", [SIZE], "native")
    fio.fill(bench.unstun.target("first"), SIZE, bench.folder)
    for number in range(bench.rounds_few):
        results["native"].append(native(bench, number))
        for name, options in QCOW2.items():
            results[name].append(qcow2(bench, base, options))
        results["nbdkit cow"].append(nbdkit_cow(bench, base))
    bench.unstun.json("vm", "remove", "first", "--delete-disks", "--purge", "--yes")
    missing = reflinks(bench, results["reflink on XFS"])
    report(bench, results, missing)


def seconds(bench):
    return 5 if bench.quick else 10


def before(bench, target):
    return fio.run(target, Load(SIZE, seconds(bench), rw="randwrite"), bench.folder).iops


def after(bench, target):
    return fio.run(target, Load(SIZE, seconds(bench), rw="randwrite", once=True), bench.folder).iops


def native(bench, number):
    target = bench.unstun.target("first")
    at_first = before(bench, target)
    bench.unstun.take("first", f"s{number}")
    with_snapshot = after(bench, target)
    bench.unstun.commit("first", f"s{number}")
    return with_snapshot, at_first


def qcow2(bench, base, options):
    with QemuStorageDaemon(base, bench.folder) as peer:
        at_first = before(bench, peer.target())
    overlay = bench.folder / "overlay.qcow2"
    with QemuStorageDaemon(base, bench.folder, overlay, overlay_options=options) as peer:
        with_snapshot = after(bench, peer.target())
    overlay.unlink()
    return with_snapshot, at_first


def nbdkit_cow(bench, base):
    with Nbdkit(base, bench.folder) as peer:
        at_first = before(bench, peer.target())
        peer.settle()
    with Nbdkit(base, bench.folder, ["cow"]) as peer:
        with_snapshot = after(bench, peer.target())
    return with_snapshot, at_first


def reflinks(bench, results):
    """The copy is the snapshot; the original is served on. Why it was left out, where it was."""
    if os.geteuid() != 0:
        return "needs root for a loop mount"
    try:
        with xfs(bench.folder) as mount:
            disk = mount / "disk.raw"
            with disk.open("wb") as file:
                file.truncate(SIZE)
            with QemuStorageDaemon(disk, bench.folder) as peer:
                fio.fill(peer.target(), SIZE, bench.folder)
                for _ in range(bench.rounds_few):
                    at_first = before(bench, peer.target())
                    subprocess.run(["cp", "--reflink=always", disk, mount / "copy.raw"], check=True)
                    results.append((after(bench, peer.target()), at_first))
                    (mount / "copy.raw").unlink()
    except (OSError, subprocess.CalledProcessError) as problem:
        return str(problem)
    return ""


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


def of_before(pairs):
    return Spread([with_snapshot / at_first for with_snapshot, at_first in pairs])


def rate(pairs):
    return Spread([with_snapshot for with_snapshot, _ in pairs]).middle


def report(bench, results, missing):
    pairs = results.pop("native")
    ours, note = of_before(pairs), f"{rate(pairs):.0f} IOPS"
    bench.report.at_least("native, peers' row: first writes after a snapshot, of before", ours, 0.95, note)
    for name, pairs in results.items():
        what = f"the same, {name}"
        if not pairs:
            bench.report.add(Figure(what, "", f"not measured: {missing}"))
            continue
        theirs = of_before(pairs)
        note = f"{rate(pairs):.0f} IOPS" + (", page cache" if "nbdkit" in name else "")
        wins = ours.middle > theirs.middle
        bench.report.add(Figure(what, f"below {ours.middle:.2f}", theirs.text(), wins, note))
