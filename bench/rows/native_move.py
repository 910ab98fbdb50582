"""A guest while its VM's delta chain is absorbed into the native store."""

from functools import partial

from bench import fio
from bench.fio import Load
from bench.report import Figure, Spread

SIZE = 512 << 20
LAYERS = 4
LAYER_WRITES = 5000
MOVE_S = 180


def measure(bench):
    unstun, target = bench.unstun, bench.unstun.target("chain")
    unstun.create("chain", [SIZE])
    fio.fill(target, SIZE, bench.folder)
    for layer in range(1, LAYERS):
        unstun.take("chain", f"layer-{layer}")
        fio.run(target, Load(SIZE, 0, rw="randwrite", extra=[f"--number_ios={LAYER_WRITES}"]), bench.folder)
    before = fio.run(target, Load(SIZE, bench.seconds * 2), bench.folder)
    operation = partial(unstun.move_job, "chain", "native", MOVE_S - 10)
    job, took, during = fio.during(target, Load(SIZE, MOVE_S), bench.folder, operation)
    what = f"native, a chain of {LAYERS} layers is absorbed under its guest"
    if job is None or job["state"] != "done":
        state = f"{job['state']}: {job['error']}" if job else f"not after {MOVE_S - 10} s"
        bench.report.add(Figure(what, "ends", state, False))
    else:
        note = f"512 MiB in {took:.0f} s, IOPS {during.iops / before.iops:.2f} of before, longest {during.max_us / 1000:.0f} ms"
        bench.report.at_most(f"{what}: p99 of before", Spread([during.p99_us / before.p99_us]), 2, note)
    unstun.remove("chain")
