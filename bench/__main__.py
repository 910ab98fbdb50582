"""python3 -m bench --binary target/release/unstun [--quick] [--only serving,...,native] [--folder DIR]"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from bench import fio
from bench.machine import Device, facts
from bench.report import Report
from bench.rows import (
    backups,
    ceph,
    commit,
    cores,
    lab,
    large,
    memory,
    native,
    peers,
    polls,
    recorder,
    scale,
    serving,
    snapshot,
    sources,
    stalls,
    stun,
    vhost,
)
from bench.servers import Unstun

ROWS = {
    "serving": serving,
    "vhost": vhost,
    "snapshot": snapshot,
    "commit": commit,
    "peers": peers,
    "stun": stun,
    "memory": memory,
    "large": large,
    "native": native,
    "polls": polls,
    "cores": cores,
    "stalls": stalls,
    "recorder": recorder,
    "scale": scale,
    "backups": backups,
    "sources": sources,
    "ceph": ceph,
    "lab": lab,
}
GIB = 1 << 30
# The test disk with its overlays and deltas, the deep chain, the busy disk, and the peer's copy; or 31 layers' tables.
SPACE_NEEDED = 30 * GIB


class Bench:
    """What every group of figures works with."""

    def __init__(self, folder, quick):
        self.folder = folder
        self.quick = quick
        self.seconds = 3 if quick else 4
        self.rounds = 2 if quick else 5
        self.rounds_few = 1 if quick else 3
        self.size = (2 if quick else 4) * GIB
        # More than three checkpoints' worth of blocks.
        self.native_size = (6 if quick else 12) * GIB
        self.depths = (1, 8, 32) if quick else (1, 8, 32, 128)
        self.takes = 20 if quick else 100
        self.report = Report()
        self.device = Device(folder)
        self.unstun = None


def arguments():
    parser = argparse.ArgumentParser(prog="bench", description="Measures the figures beside their peers.")
    parser.add_argument("--binary", type=Path, required=True, help="the unstun binary")
    parser.add_argument("--folder", type=Path, default=Path("target/bench"), help="on the storage to measure")
    parser.add_argument("--quick", action="store_true", help="few rounds, about 17 minutes")
    parser.add_argument("--only", default=",".join(ROWS), help="groups, separated by commas")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(ROWS)
    if unknown:
        parser.error(f"no group named {', '.join(unknown)}: there are {', '.join(ROWS)}")
    return options


def main():
    options = arguments()
    folder = options.folder.absolute() / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    free = shutil.disk_usage(folder).free
    if free < SPACE_NEEDED:
        sys.exit(f"bench: {folder} has {free / GIB:.0f} GiB free, {SPACE_NEEDED / GIB:.0f} GiB are needed")
    print("\n".join(facts(folder)), flush=True)
    bench = Bench(folder, options.quick)
    began = time.monotonic()
    try:
        with Unstun(options.binary.absolute(), folder / "datastore") as unstun:
            bench.unstun = unstun
            if set(options.only.split(",")) - {"stun", "memory", "large", "polls", "stalls", "cores", "recorder", "scale", "backups", "sources", "ceph"}:
                unstun.create("web", [bench.size])
                fio.fill(unstun.target("web"), bench.size, folder)
            for name in options.only.split(","):
                print(f"\n{name}", flush=True)
                ROWS[name].measure(bench)
    finally:
        table = bench.report.table()
        (options.folder / "figures.md").write_text(table + "\n")
        print(f"\n{table}\n\n{time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
