"""Backups beside restic, borg and qemu-img: rate, processor time, memory and space of a first backup; what increments
move; restores, and the time until a restored VM answers."""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass

from bench.report import Figure, Spread, ratios
from bench.servers import Unstun

MIB = 1 << 20
GIB = 1 << 30
# Of each 4 MiB, half a MiB that compresses to its half; the rest is a hole.
STRIDE = 4 * MIB
PIECE = MIB // 2
PASSWORD = "bench"


@dataclass
class Ran:
    seconds: float
    cpu_s: float
    peak_bytes: int


def ran(command, env=None):
    """Runs a program to its end, with what it used."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command}: exit code {process.returncode}")
    return Ran(time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def image(path, size):
    """Writes a sparse raw image, and returns its bytes of data."""
    data = 0
    with path.open("wb") as file:
        file.truncate(size)
        for at in range(0, size, STRIDE):
            file.seek(at)
            noise = os.urandom(PIECE // 2)
            half = PIECE // 256
            file.write(b"".join(noise[n * 128 : n * 128 + 128] + bytes([n % 251]) * 128 for n in range(half)))
            data += PIECE
    return data


def stored(folder):
    """Bytes and number of the files of a repository."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files), len(files)


class Peer:
    """A tool that backs a raw file up into a new repository, and restores it."""

    def __init__(self, name, folder, init, backup, restore):
        self.name, self.folder = name, folder
        self.init, self.backup, self.restore = init, backup, restore
        self.env = {**os.environ, "RESTIC_PASSWORD": PASSWORD, "BORG_PASSPHRASE": PASSWORD}
        self.env |= {"BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes", "XDG_CACHE_HOME": str(folder / "cache")}

    def first(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.init:
            ran(self.init, self.env)
        return ran(self.backup, self.env)

    def restored(self):
        return ran(self.restore, self.env) if self.restore else None


def synced(command, written):
    """Durable at its end, as our restores are."""
    return ["sh", "-c", f"{command} && sync -f '{written}'"]


def peers(folder, raw):
    restic, borg, qcow2 = folder / "restic", folder / "borg", folder / "qcow2"
    out = folder / "restored"
    return [
        Peer(
            "restic", restic,
            ["restic", "init", "-q", "-r", restic / "r", "--repository-version", "2"],
            ["restic", "backup", "-q", "-r", restic / "r", raw],
            synced(f"restic restore -q latest -r '{restic}/r' --target '{out}'", out),
        ),
        Peer(
            "borg", borg,
            ["borg", "init", "-e", "repokey-blake2", borg / "r"],
            ["borg", "create", "--sparse", "-C", "zstd,1", f"{borg}/r::a", raw],
            None,
        ),
        Peer(
            "qemu-img convert -c", qcow2, None,
            ["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", "compression_type=zstd", raw, qcow2 / "a.qcow2"],
            synced(f"qemu-img convert -f qcow2 -O raw '{qcow2}/a.qcow2' '{folder}/from.raw'", folder / "from.raw"),
        ),
    ]  # fmt: skip


def measure(bench):
    folder = bench.folder / "backups"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    raw = folder / "disk.raw"
    data = image(raw, (4 if bench.quick else 16) * GIB)
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    with Unstun(bench.unstun.binary, folder / "datastore") as unstun:
        unstun.create("web", [raw.stat().st_size], store="native")
        ran(["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", raw, unstun.target("web").uri])
        first_backups(bench, unstun, folder, raw, data, env)
        increments(bench, unstun, folder, env)
        answers(bench, unstun, folder, env)
    shutil.rmtree(folder)


def repository(unstun, folder):
    """Makes a new repository, and returns the arguments that name it."""
    shutil.rmtree(folder / "unstun", ignore_errors=True)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    (folder / "key").unlink(missing_ok=True)
    where = ["--repo", str(folder / "unstun"), "--key-file", str(folder / "key")]
    unstun.json("repo", "init", *where, "--new-key")
    return where


def first_backups(bench, unstun, folder, raw, data, env):
    others = peers(folder, raw)
    ours, restored, theirs = [], [], {peer.name: ([], []) for peer in others}
    for _ in range(bench.rounds_few):
        where = repository(unstun, folder)
        ours.append(ran([*unstun.command(), "backup", "web", *where, "--no-keep"], env))
        space, objects = stored(folder / "unstun")
        restored.append(ran([*unstun.command(), "restore", "web", *where, "--into", folder / "into"], env).seconds)
        shutil.rmtree(folder / "into")
        for peer in others:
            backed_up, back = peer.first(), peer.restored()
            theirs[peer.name][0].append(backed_up)
            theirs[peer.name][1].append(back.seconds if back else None)
            peer.space = stored(peer.folder)
            for left in (folder / "restored", folder / "from.raw"):
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    rate = Spread([data / one.seconds / MIB for one in ours])
    note = f"{space / data:.2f} of the data in {objects} files, {ours[-1].cpu_s:.1f} s of processor time, "
    note += f"{ours[-1].peak_bytes / MIB:.0f} MiB of memory"
    bench.report.add(Figure(f"first backup of {data / GIB:.1f} GiB of data, MiB/s", "", rate.text(0), None, note))
    for peer in others:
        backups, backs = theirs[peer.name]
        space, objects = peer.space
        note = f"{space / data:.2f} of the data in {objects} files, {backups[-1].cpu_s:.1f} s of processor time, "
        note += f"{backups[-1].peak_bytes / MIB:.0f} MiB of memory"
        what = f"rate of a first backup, of {peer.name}"
        bench.report.at_least(what, ratios([one.seconds for one in backups], [one.seconds for one in ours]), 1, note)
        if backs[0]:
            bench.report.at_least(f"rate of a restore into a file, of {peer.name}", ratios(backs, restored), 1)


def increments(bench, unstun, folder, env):
    """Changes 1 % of a disk in runs of one length, at random places, and backs it up."""
    size = (10 if bench.quick else 100) * GIB
    where = repository(unstun, folder)
    unstun.create("wide", [size], store="native")
    unstun.json("backup", "wide", *where)
    for run in (4096, 64 << 10, MIB):
        command = ["fio", "--name=runs", "--ioengine=nbd", f"--uri={unstun.target('wide').uri}", "--rw=randwrite"]
        command += [f"--bs={run}", f"--size={size}", f"--io_size={size // 100}", "--iodepth=16", "--randrepeat=0"]
        ran([*command, "--buffer_compress_percentage=50", "--refill_buffers"])
        begin = time.monotonic()
        made = unstun.json("backup", "wide", *where)
        took = time.monotonic() - begin
        what = f"1 % of {size // GIB} GiB in runs of {run // 1024} KiB: read, of what was written"
        note = f"{made['stored_bytes'] / MIB:.0f} MiB stored, {took:.1f} s"
        bench.report.add(Figure(what, "", f"{made['read_bytes'] / (size // 100):.2f}", None, note))


def answers(bench, unstun, folder, env):
    """The time until a VM that is restored with --run answers its first read."""
    where = repository(unstun, folder)
    unstun.json("backup", "web", *where, "--no-keep")
    times = []
    for number in range(bench.takes // 10):
        begin = time.monotonic()
        unstun.json("restore", "web", *where, "--as", f"back{number}", "--run")
        ran(["qemu-io", "-r", "-f", "raw", "-c", "read 0 4k", unstun.target(f"back{number}").uri])
        times.append(1000 * (time.monotonic() - begin))
        unstun.remove(f"back{number}")
    bench.report.add(Figure("until a restored VM has answered its first read, ms", "", Spread(times).text(0), None))
