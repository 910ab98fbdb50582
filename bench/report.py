"""Figures beside their aims."""

from dataclasses import dataclass
from statistics import median


@dataclass
class Spread:
    """The median of the rounds, and how far they went."""

    values: list

    @property
    def middle(self):
        return median(self.values)

    def text(self, digits=2):
        low, high = min(self.values), max(self.values)
        if low == high:
            return f"{self.middle:.{digits}f}"
        return f"{self.middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def ratios(ours, theirs):
    """Of the same round, because the disk drifts."""
    return Spread([a / b for a, b in zip(ours, theirs)])


@dataclass
class Figure:
    what: str
    aim: str
    measured: str
    # None where there is no aim, only context.
    met: bool | None = None
    note: str = ""


class Report:
    def __init__(self):
        self.figures = []

    def at_least(self, what, spread, aim, note="", digits=2):
        self.add(Figure(what, f">= {aim}", spread.text(digits), spread.middle >= aim, note))

    def at_most(self, what, spread, aim, note="", digits=2):
        self.add(Figure(what, f"<= {aim}", spread.text(digits), spread.middle <= aim, note))

    def add(self, figure):
        self.figures.append(figure)
        verdict = {True: "met", False: "NOT MET", None: ""}[figure.met]
        print(f"  {figure.what}: {figure.measured} (aim {figure.aim or '-'}) {verdict} {figure.note}".rstrip(), flush=True)

    def table(self):
        rows = [("figure", "aim", "measured", "", "note")]
        verdicts = {True: "met", False: "not met", None: ""}
        rows += [(f.what, f.aim, f.measured, verdicts[f.met], f.note) for f in self.figures]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)
