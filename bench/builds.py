"""python3 -m bench.builds OLD NEW [--rounds N] [--folder DIR]: two builds of unstun side by side, in alternating slices.

A slice is a few seconds of 4 KiB random 70/30 on a disk that is fully written. The first build of a round alternates. Printed
are the medians over the rounds of IOPS and of the daemon's CPU time per I/O, new to old, with the interval of the middle half.
"""

import argparse
import shutil
from pathlib import Path
from statistics import median, quantiles

from bench import fio
from bench.fio import Load
from bench.machine import facts
from bench.rows.serving import Subject
from bench.servers import Unstun

SIZE = 1 << 30
SECONDS = 3
DEPTHS = (1, 8, 32)


def arguments():
    parser = argparse.ArgumentParser(prog="bench.builds", description="Compares two builds of unstun.")
    parser.add_argument("old", type=Path, help="an unstun binary")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--rounds", type=int, default=12, help="slices of each build and depth (12)")
    parser.add_argument("--folder", type=Path, default=Path("target/bench"), help="on the storage to measure")
    return parser.parse_args()


def text(values):
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.3f} ({low:.3f}-{high:.3f})"


def compare(builds, store, rounds, folder):
    for build in builds:
        build.create(store, [SIZE], store)
        fio.fill(build.target(store), SIZE, folder)
    for depth in DEPTHS:
        old, new = (Subject(str(build.binary), build.target(store), build.pid) for build in builds)
        for number in range(rounds):
            for subject in (old, new) if number % 2 == 0 else (new, old):
                subject.slice(Load(SIZE, SECONDS, depth=depth), folder)
        iops = [b / a for a, b in zip(old.iops, new.iops)]
        cpu = [b / a for a, b in zip(old.cpu_us, new.cpu_us)]
        rates = f"{median(old.iops):.0f} and {median(new.iops):.0f} IOPS"
        print(f"{store}, depth {depth}: IOPS {text(iops)}, CPU per I/O {text(cpu)}; {rates}", flush=True)


def main():
    options = arguments()
    folder = options.folder.absolute() / "builds"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print("\n".join(facts(folder)), flush=True)
    try:
        with Unstun(options.old.absolute(), folder / "old") as old, Unstun(options.new.absolute(), folder / "new") as new:
            for store in ("native", "redo"):
                compare((old, new), store, options.rounds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
