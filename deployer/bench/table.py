"""A sweep as text for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deployer.bench.model import BenchFile, Measurement
from deployer.bench.series import Match, Series, Spread, match, sampling, series
from deployer.bench.verdict import speed, tpot, verdict

CPU_REMARK = "Measured with Triton's interpreter on a CPU: acceptance is real, times say nothing about a GPU's speed."
_SHOWN_DEPTHS = 6  # in one line; the page has all
_HEADINGS = ("arm", "accepted", "accepted by depth", "TPOT ms", "tokens/s", "speed-up", "off spine", "equal (control)")


def table(file: BenchFile, width: int = 132) -> str:
    """A table for each place where arms were compared, then what follows from all of them."""
    found = series(file)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    for place in dict.fromkeys(one.place for one in found):
        console.print(_grid(file, [one for one in found if one.place == place]))
    for line in remarks(file, found):
        console.print(line, markup=False)
    return out.getvalue()


def _grid(file: BenchFile, here: Sequence[Series]) -> Table:
    place = here[0].place
    title = f"bench: {escape(place.prompts)}, {sampling(place.temperature)}, {place.concurrency} at a time"
    grid = Table(title=title, title_justify="left")
    for heading in _HEADINGS:
        left = heading in ("arm", "accepted by depth")
        grid.add_column(heading, justify="left" if left else "right", no_wrap=heading != "accepted by depth")
    baseline = next((one for one in here if one.arm == "ar"), None)
    for one in here:
        grid.add_row(*_cells(file, one, baseline))
    return grid


def remarks(file: BenchFile, found: Sequence[Series]) -> list[str]:
    """What the numbers mean, and what they do not say."""
    return ([CPU_REMARK] if file.subject.build == "cpu" else []) + [verdict(file, found).sentence]


def _cells(file: BenchFile, one: Series, baseline: Series | None) -> tuple[str, ...]:
    title = next(arm.title for arm in file.arms if arm.name == one.arm)
    last = one.rounds[-1]
    return (
        title,
        f"{one.spread(lambda seen: seen.acceptance_length).middle:.2f}" if last.drafts else "1",
        _depths(last),
        f"{one.spread(tpot).middle:.1f}",
        _ranged(one.spread(speed)),
        f"{one.spread(speed).middle / baseline.spread(speed).middle:.2f}x" if baseline else "-",
        f"{last.off_spine_share:.0%}" if last.off_spine_share is not None else "-",
        _match(match(one, baseline)),
    )


def _depths(seen: Measurement) -> str:
    shares = " ".join(f"{share:.2f}".removeprefix("0") for share in seen.accepted_by_depth[:_SHOWN_DEPTHS])
    return shares or "-"


def _ranged(spread: Spread) -> str:
    """The median, and the range of the rounds where there are several."""
    if spread.low == spread.high:
        return f"{spread.middle:.1f}"
    return f"{spread.middle:.1f} ({spread.low:.1f}-{spread.high:.1f})"


def _match(found: Match | None) -> str:
    if found is None:
        return "-"
    control = "" if found.control is None else f" ({found.control:.0%})"
    return f"{found.share:.0%}{control}"
