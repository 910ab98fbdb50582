"""`unstun lab`, and what its JSON says."""

import json
import subprocess

from bench.report import Spread


def lab(bench, *arguments):
    """The JSON of a command that may have ended with an error of its subject's."""
    command = [bench.unstun.binary, "lab", *map(str, arguments), "--json"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}") from None


def compare(bench, folder, subjects, *options):
    """Runs the same work on each subject in turns, by the lab's own load. Returns the figures by subject."""
    summaries = lab(bench, "compare", *subjects, "--real", folder, *options)
    return {summary["subject"]: Compared(summary) for summary in summaries}


class Compared:
    """The figures of one subject: `lab compare` in docs/lab-json.md."""

    def __init__(self, summary):
        self.name, self.failures = summary["subject"], summary["failures"]
        self.cells = {(cell["phase"], cell["quantity"]): cell for cell in summary["cells"]}

    def value(self, phase, quantity):
        return self.spread(phase, quantity, "value")

    def of_before(self, phase):
        """IOPS, of those before the snapshot in the same run."""
        return self.spread(phase, "iops", "of_baseline")

    def spread(self, phase, quantity, kind):
        cell = self.cells.get((phase, quantity))
        if cell is None or cell[kind] is None:
            raise RuntimeError(f"{self.name}: no {quantity} of {phase}: {'; '.join(self.failures) or 'too short'}")
        return Spread([cell[kind][of] for of in ("lowest", "median", "highest")])

    def share(self, phase):
        """As text; a commit of milliseconds has no rate."""
        return self.of_before(phase).text() if (phase, "iops") in self.cells else "-"

    def commit(self):
        """(whether every commit ended under the load, how long as text)."""
        if not min(self.value("commit", "converged").values):
            return False, "not ended under load"
        return True, f"in {self.value('commit', 'seconds').text(1)} s"
