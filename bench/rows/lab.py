"""The lab as an instrument: its load beside fio's on the same disk, what it reads of fio's files, and long runs on real
storage."""

import contextlib
import os
from pathlib import Path

from bench import fio
from bench.fio import Load, Target
from bench.lab import compare, lab
from bench.report import Figure, Spread, ratios
from bench.servers import Nbdkit

# How far the lab may be from fio.
APART_MAX = 0.02
STACKS = ("native", "redo", "qemu")
# Storage that is slower than either client: what differs then is what is counted.
SLOW = ["rdelay=1ms", "wdelay=1ms"]

EXPERIMENT = Path(__file__).parent.with_name("load.toml")


def measure(bench):
    base = Target(file=str(bench.unstun.layer_files("web")[0]))
    beside_fio(bench, "the same file, depth 32", base, 32)
    beside_fio(bench, "the same file, depth 1", base, 1)
    beside_fio(bench, "the same NBD export, depth 1", bench.unstun.target("web"), 1)
    with one_cpu(bench.unstun.pid):
        beside_fio(bench, "the same NBD export, depth 1, all on one CPU", bench.unstun.target("web"), 1)
    beside_fio(bench, "the same NBD export, depth 32", bench.unstun.target("web"), 32)
    with Nbdkit(base.file, bench.folder, ["delay"], SLOW) as slow:
        beside_fio(bench, "the same NBD export of 1 ms, depth 8", slow.target, 8)
    imports(bench, base)
    long_runs(bench)


@contextlib.contextmanager
def one_cpu(server):
    """The clients started meanwhile, and the server of that id, on the first CPU. What is left to compare is what each does
    for a request: the kernel wakes a client that waits in poll(2) where the server runs, and one that waits in its ring
    where it ran before, which costs a virtual machine more than the request does."""
    cpus = os.sched_getaffinity(0)
    first = {min(cpus)}

    def move(to):
        for task in [0, *map(int, os.listdir(f"/proc/{server}/task"))]:
            os.sched_setaffinity(task, to)

    move(first)
    try:
        yield
    finally:
        move(cpus)


def one_load(bench, target, depth):
    """IOPS of a load by the lab; its take and commit are never asked for."""
    path = bench.folder / "load.toml"
    path.write_text(EXPERIMENT.read_text().format(size=bench.size, depth=depth, seconds=bench.seconds))
    hooks = ["--target", target.uri or target.file, "--take", "true", "--commit", "true"]
    record = lab(bench, "run", path, "--real", bench.folder / "lab", *hooks, "--minutes", 60)
    [iops] = [row["predicted"] for row in record["rows"] if (row["phase"], row["quantity"]) == ("baseline", "iops")]
    return iops


def beside_fio(bench, what, target, depth):
    """In turns, the other one first each time."""
    load = Load(bench.size, bench.seconds, depth=depth)
    theirs, ours = [], []
    for number in range(bench.rounds):
        turns = [lambda: theirs.append(fio.run(target, load, bench.folder).iops), lambda: ours.append(one_load(bench, target, depth))]
        for turn in turns if number % 2 == 0 else turns[::-1]:
            turn()
    ratio = ratios(ours, theirs)
    note = f"{Spread(ours).middle:.0f} and {Spread(theirs).middle:.0f} IOPS"
    near(bench, f"lab, {what}: IOPS, of fio's", ratio, note)


def near(bench, what, ratio, note=""):
    met = abs(ratio.middle - 1) <= APART_MAX
    bench.report.add(Figure(what, f"1 +- {APART_MAX}", ratio.text(3), met, note))


def imports(bench, target):
    """What `lab import` makes of fio's JSON and logs, beside what fio itself says of that run."""
    # A line for each I/O.
    logs = ["--write_lat_log=import"]
    said = fio.run(target, Load(bench.size, bench.seconds, extra=logs), bench.folder)
    [record] = lab(bench, "import", bench.folder / "fio.json")
    sample = record["samples"][0]
    iops = (sample["reads"] + sample["writes"]) * 1e6 / sample["interval_us"]
    near(bench, "lab import, fio's JSON: IOPS, of fio's summary", Spread([iops / said.iops]))
    [record] = lab(bench, "import", *sorted(bench.folder.glob("import_clat*.log")))
    count = sum(sample["reads"] + sample["writes"] for sample in record["samples"])
    near(bench, "lab import, fio's logs: I/Os, of fio's summary", Spread([count / said.ios]))


def long_runs(bench):
    """The saturated protocol of the oldest article, as long as it may be."""
    minutes = 1 if bench.quick else 10
    options = ["--experiment", "zandboer-saturated", "--minutes", minutes, "--rounds", 1]
    for stack in compare(bench, bench.folder / "lab", STACKS, *options).values():
        what = f"lab compare, zandboer-saturated, {stack.name}, {minutes} min: with snapshot / committing / after, of before"
        if stack.failures:
            bench.report.add(Figure(what, "", "failed", note=stack.failures[0]))
            continue
        shares = " / ".join(stack.share(phase) for phase in ("snapshot", "commit", "after"))
        note = f"{stack.value('baseline', 'iops').middle:.0f} IOPS; commit {stack.commit()[1]}"
        bench.report.add(Figure(what, "", shares, note=note))
