"""What a commit costs the guest."""

from functools import partial

from bench import fio
from bench.fio import Load
from bench.report import Figure, Spread

HOLD_S = 8
# A commit that has not ended by then counts as one that does not.
PATIENCE_S = 180


def measure(bench):
    """The load runs from the commit's start to its end and is measured over exactly that time."""
    unstun, target = bench.unstun, bench.unstun.target("web")
    rates, delays, times = [], [], []
    for number in range(bench.rounds_few):
        name = f"commit-{number}"
        before = fio.run(target, Load(bench.size, bench.seconds), bench.folder)
        unstun.take("web", name)
        fio.run(target, Load(bench.size, HOLD_S), bench.folder)
        operation = partial(unstun.commit_job, "web", name, PATIENCE_S - 5)
        job, took, during = fio.during(target, Load(bench.size, PATIENCE_S), bench.folder, operation, lead_s=0)
        if job is None:
            bench.report.add(Figure("commit at the default yield", "ends", f"not after {PATIENCE_S} s", False))
            return
        times.append(took)
        rates.append(during.iops / before.iops)
        delays.append(during.p99_us / before.p99_us)
    took = f"{Spread(times).middle:.0f} s for what {HOLD_S} s wrote"
    bench.report.at_least("IOPS while committing, of before", Spread(rates), 0.7, took)
    bench.report.at_most("p99 while committing, of before", Spread(delays), 2)
