"""How long a sweep will take: said before it starts, and while it runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from deployer.bench.model import Cell
from deployer.bench.sweep import Load

_COLD_LOAD = {"cuda": 660.0, "cpu": 60.0}  # seconds: 54 GB over two cards were seen to take 11 minutes
_OVERHEAD = 20.0  # seconds beside the counted requests: warm-ups, the client's own start


@dataclass(frozen=True)
class Estimate:
    """`load` and `cell` are seconds each; `cell` is None while no cell of the sweep was measured."""

    loads: int
    cells: int
    load: float
    cell: float | None

    @property
    def seconds(self) -> float:
        return self.loads * self.load + self.cells * ((self.cell or 0.0) + _OVERHEAD)

    def text(self) -> str:
        """As it is said before starting."""
        work = f"{_counted(self.cells, 'measurement')} and {_counted(self.loads, 'load')} of the model"
        if self.cell is None:
            loads = duration(self.loads * self.load)
            return f"{work}, up to {duration(self.load)} each: up to {loads} and the time of the requests"
        return f"{work}: about {duration(self.seconds)}"


def estimate(loads: Sequence[Load], known: Sequence[Cell], build: str) -> Estimate:
    """Of what is left, by what was measured of the sweep until now."""
    took = [cell.measured for cell in known]
    return Estimate(
        loads=len(loads),
        cells=sum(len(load.cells) for load in loads),
        load=fmean(one.load_seconds for one in took) if took else _COLD_LOAD[build],
        cell=fmean(one.seconds for one in took) if took else None,
    )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """40 s, 11 minutes, 2 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
