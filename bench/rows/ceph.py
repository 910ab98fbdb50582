"""A native disk in an image of RBD beside QEMU's librbd and `rbd bench`, on a cluster of one node that is made here: with and
without snapshots, and while they are removed."""

import json
import re
import subprocess
from pathlib import Path

from bench import fio
from bench.fio import Load, Target
from bench.report import Figure, Spread, ratios
from bench.servers import Server, Unstun, serves

SCRIPT = Path(__file__).parents[2] / "scripts" / "ceph-cluster.sh"
GIB = 1 << 30
SIZE = 1 * GIB
SNAPSHOTS = 8
# First writes between two snapshots, in blocks.
BETWEEN = 2000


def run(*command):
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


class Cluster:
    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        run(SCRIPT, "start", self.folder)
        self.config = self.folder / "ceph.conf"
        return self

    def __exit__(self, *_):
        run(SCRIPT, "stop", self.folder)

    def rbd(self, *arguments):
        return run("rbd", "-c", self.config, *arguments)

    def image(self, name):
        return f"rbd:vms/{name}:conf={self.config}"


class Qemu(Server):
    """`qemu-nbd` over librbd, with writes that need a flush to be durable, as unstun's."""

    def __init__(self, cluster, name, folder):
        self.socket = folder / f"{name}.sock"
        target = Target(uri=f"nbd+unix:///?socket={self.socket}")
        command = ["qemu-nbd", "--persistent", "--shared=4", "--format=raw", "--cache=none", "--aio=threads"]
        command += ["--discard=unmap", f"--socket={self.socket}", cluster.image(name)]
        super().__init__("qemu-nbd", command, folder / f"{name}.log")
        self.target = target
        self.wait_until(lambda: serves(target))


def measure(bench):
    with Cluster(bench.folder / "ceph") as cluster:
        cluster.rbd("create", "vms/qemu", "--size", f"{SIZE >> 20}M")
        cluster.rbd("create", "vms/bench", "--size", f"{SIZE >> 20}M")
        # Reads of what was never written would not reach the disk.
        cluster.rbd("bench", "--io-type", "write", "--io-size", "4M", "--io-total", f"{SIZE}", "vms/bench")
        with Unstun(bench.unstun.binary, bench.folder / "on-ceph") as unstun, Qemu(cluster, "qemu", bench.folder) as qemu:
            unstun.json("datastore", "create", cluster.image("store"), "--size", f"{3 * SIZE}")
            unstun.json("datastore", "add", f"store={cluster.image('store')}")
            at_store(unstun, "vm", "create", "web", f"--disk={SIZE}")
            for target in (unstun.target("web"), qemu.target):
                fio.fill(target, SIZE, bench.folder)
            compare(bench, cluster, unstun, qemu)


def at_store(unstun, *arguments):
    """A command at the datastore `store` of the daemon."""
    environment = {"UNSTUN_DATASTORE": str(unstun.datastore), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    done = subprocess.run(
        [unstun.binary, "--datastore", "store", *arguments, "--json"], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"unstun {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def compare(bench, cluster, unstun, qemu):
    """In turns, so that all find the cluster in the same state."""
    rates = {}
    targets = {"unstun": unstun.target("web"), "qemu": qemu.target}

    def load(name, what, rw):
        result = fio.run(targets[name], Load(SIZE, 2 * bench.seconds, rw=rw), bench.folder)
        rates.setdefault((name, what), []).append(result.iops)

    for number in range(bench.rounds):
        for what in ("randread", "randwrite"):
            rates.setdefault(("rbd bench", what), []).append(rbd_bench(cluster, what.removeprefix("rand")))
            for name in targets:
                load(name, what, what)
        for snapshot in range(SNAPSHOTS):
            unstun.take("web", f"s{number}-{snapshot}")
            cluster.rbd("snap", "create", f"vms/qemu@s{number}-{snapshot}")
            for target in targets.values():
                fio.run(target, Load(SIZE, 0, rw="randwrite", extra=[f"--number_ios={BETWEEN}"]), bench.folder)
        for name in targets:
            load(name, "randwrite with 8 snapshots", "randwrite")
        remove = {
            "unstun": lambda: unstun.json("snapshot", "commit", "web", "--all", "--yes"),
            "qemu": lambda: cluster.rbd("snap", "purge", "vms/qemu"),
        }
        for name, target in targets.items():
            running = fio.Running(target, Load(SIZE, 2 * bench.seconds, rw="randwrite"), bench.folder)
            remove[name]()
            rates.setdefault((name, "randwrite while they are removed"), []).append(running.wait().iops)
    report(bench, rates)


def rbd_bench(cluster, kind):
    """IOPS at depth 32."""
    options = ["--io-type", kind, "--io-size", "4K", "--io-threads", "32", "--io-pattern", "rand", "--io-total", "64M"]
    # Without the cache in the library, which would answer before the cluster has a write.
    text = cluster.rbd("--rbd-cache=false", "bench", *options, "vms/bench")
    return float(re.search(r"ops/sec: ([0-9.]+)", text).group(1))


def report(bench, rates):
    for name, what in [key for key in rates if key[0] == "unstun"]:
        for peer in ("qemu", "rbd bench"):
            if (peer, what) in rates:
                shown = ratios(rates[name, what], rates[peer, what])
                note = f"{Spread(rates[name, what]).text(0)} and {Spread(rates[peer, what]).text(0)} IOPS, 4 KiB, depth 32"
                bench.report.add(Figure(f"on Ceph, {what}, unstun beside {peer}", "", shown.text(), None, note))
    for name, what in [key for key in rates if " " in key[1]]:
        shown = ratios(rates[name, what], rates[name, "randwrite"])
        bench.report.add(Figure(f"on Ceph, {name}, {what}, of before", "", shown.text(), None))
