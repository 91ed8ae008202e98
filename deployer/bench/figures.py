"""The four questions that people ask of a bench, each as a row of plots. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from deployer.bench import svg
from deployer.bench.model import ArmLine, BenchFile, Measurement
from deployer.bench.series import Metric, Series, Spread, geometric, sampling
from deployer.bench.svg import Axis, Line, Point, Row
from deployer.bench.verdict import speed

_LATENCIES = (("time to first token", "ttft"), ("time per output token", "tpot"), ("request to last token", "e2e"))


@dataclass(frozen=True)
class Panel:
    """One plot and what it is of. Panels of the same `row` stand beside each other."""

    caption: str
    plot: str
    row: str = ""


@dataclass(frozen=True)
class Figure:
    """A question, how to read its answer, and the plots. `legend` is (shape, colour, words)."""

    title: str
    how: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str, str], ...]


def family_of(arm: str) -> str:
    """ar, mtp, chain or tree."""
    return arm.partition(":")[0]


def colour(file: BenchFile, arm: str) -> str:
    """An arm's class of the style sheet: the same in every plot; plain decoding is grey."""
    others = [line.name for line in file.arms if line.name != "ar"]
    return "c0" if arm == "ar" else f"c{others.index(arm) % 9 + 1}"


def figures(file: BenchFile, found: Sequence[Series]) -> tuple[Figure, ...]:
    """Those that the results have an answer to."""
    if not found:
        return ()
    made = (_speed_up(file, found), _acceptance(file, found), _cost(file, found), _latency(file, found))
    return tuple(figure for figure in made if figure.panels)


def _legend(file: BenchFile, arms: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    return tuple((family_of(arm.name), colour(file, arm.name), arm.title) for arm in file.arms if arm.name in arms)


def _views(found: Sequence[Series]) -> list[tuple[str, str, list[Series]]]:
    """A row and a title for each: all prompts of a temperature, where there are several sets; then each set by itself."""
    sets = list(dict.fromkeys(one.place.prompts for one in found))
    views: list[tuple[str, str, list[Series]]] = []
    for temperature in dict.fromkeys(one.place.temperature for one in found):
        here = [one for one in found if one.place.temperature == temperature]
        if len(sets) > 1:
            views.append((temperature, f"all prompts, {sampling(temperature)}", here))
        views += [
            (temperature, f"{name}, {sampling(temperature)}", [one for one in here if one.place.prompts == name])
            for name in sets
        ]
    return [view for view in views if view[-1]]


def together(view: Sequence[Series], metric: Metric) -> Spread:
    """The geometric mean over several places, round by round. Rounds that not every place has are left out."""
    rounds = min(len(one.rounds) for one in view)
    return Spread.of([geometric(metric(one.rounds[index]) for one in view) for index in range(rounds)])


def _speed_up(file: BenchFile, found: Sequence[Series]) -> Figure:
    panels, arms = [], [arm.name for arm in file.arms]
    for row, title, view in _views(found):
        counts = sorted({one.place.concurrency for one in view})
        base = {count: _baseline(view, count) for count in counts}
        relative = all(base.values())
        drawn = []
        for arm in arms:
            points = [
                _scaled(arm, index, here, base[count] if relative else None)
                for index, count in enumerate(counts)
                if (here := [one for one in view if one.arm == arm and one.place.concurrency == count])
            ]
            if points:
                drawn.append(Line(colour(file, arm), tuple(points)))
        x = Axis("requests at a time", tuple((float(index), str(count)) for index, count in enumerate(counts)))
        y = Axis("times plain decoding" if relative else "output tokens a second")
        panels.append(Panel(title, svg.lines(f"{y.label}: {title}", x, y, drawn, rule=1.0 if relative else None), row))
    how = (
        "Output tokens a second of all requests together, beside plain decoding at the same number of requests. "
        "The bar through a mark is the range of the rounds. Above the dashed line an arm is worth having."
    )
    return Figure("Speed-up by concurrency", how, tuple(panels), _legend(file, arms))


def _baseline(view: Sequence[Series], count: int) -> float | None:
    here = [one for one in view if one.arm == "ar" and one.place.concurrency == count]
    return together(here, speed).middle if here else None


def _scaled(arm: str, x: float, here: Sequence[Series], base: float | None) -> Point:
    spread = together(here, speed)
    by = base or 1.0
    note = f"{arm}, {here[0].place.concurrency} at a time: {spread.middle:.1f} tokens/s"
    note += f", {spread.middle / by:.2f} times plain decoding" if base else ""
    return Point(x, Spread(spread.middle / by, spread.low / by, spread.high / by), note, family_of(arm))


def _acceptance(file: BenchFile, found: Sequence[Series]) -> Figure:
    panels = []
    speculative = [arm.name for arm in file.arms if any(one.arm == arm.name and _drafts(one) for one in found)]
    for row, title, view in _views(found):
        drawn = []
        for arm in speculative:
            shares = depths([seen for one in view if one.arm == arm for seen in one.rounds])
            points = tuple(
                Point(depth, Spread.of([share]), f"{arm}, depth {depth}: {share:.1%} of drafts", family_of(arm))
                for depth, share in enumerate(shares, start=1)
            )
            if points:
                drawn.append(Line(colour(file, arm), points))
        if drawn:
            deepest = int(max(point.x for line in drawn for point in line.points))
            ticks = tuple((float(depth), str(depth)) for depth in range(1, deepest + 1, 1 + (deepest - 1) // 8))
            x, y = Axis("depth", ticks), Axis("share of drafts")
            panels.append(Panel(title, svg.lines(f"acceptance by depth: {title}", x, y, drawn), row))
    how = (
        "Share of the target's steps that accepted a token at this depth or deeper, over all concurrencies and rounds. "
        "The sum of a line, plus one, is the arm's acceptance length. A tree lies above the chain that it contains."
    )
    return Figure("Acceptance by depth", how, tuple(panels), _legend(file, speculative))


def _drafts(one: Series) -> int:
    return sum(seen.drafts for seen in one.rounds)


def depths(seen: Sequence[Measurement]) -> tuple[float, ...]:
    """Share of all drafts that were accepted at depth 1, 2, ..."""
    drafts = sum(one.drafts for one in seen)
    counted = ([share * one.drafts for share in one.accepted_by_depth] for one in seen)
    return tuple(sum(depth) / drafts for depth in zip_longest(*counted, fillvalue=0.0)) if drafts else ()


def _cost(file: BenchFile, found: Sequence[Series]) -> Figure:
    """One line for each kind of arm and each concurrency, the coldest colour for the fewest requests."""
    counts = sorted({one.place.concurrency for one in found})
    tokens = {arm.name: arm.tokens for arm in file.arms}
    drawn = []
    for index, count in enumerate(counts):
        for family in ("ar", "mtp", "chain", "tree"):
            # One whose tokens change with the batch has no place on the axis.
            single = (arm for arm in tokens if family_of(arm) == family and "@" not in arm)
            arms = sorted(single, key=lambda arm: tokens[arm])
            points = [
                _step(arm, tokens[arm], count, here)
                for arm in arms
                if (here := [one for one in found if one.arm == arm and one.place.concurrency == count])
            ]
            if points:
                drawn.append(Line(f"s{index % 6}", tuple(points)))
    plot = svg.lines("cost of a step by tokens verified", Axis("tokens verified a step"), Axis("ms a step"), drawn)
    names = {"ar": "plain decoding", "mtp": "MTP head", "chain": "DFlash chain", "tree": "tree"}
    legend = [("ar", f"s{index % 6}", f"{count} at a time") for index, count in enumerate(counts)]
    legend += [
        (family, "c0", name) for family, name in names.items() if any(family_of(arm) == family for arm in tokens)
    ]
    how = (
        "Median time per output token times acceptance length, over all prompts: what one step of the target costs when "
        "it verifies that many tokens of each request. A tree pays where its line is flat."
    )
    return Figure("Cost of a step by budget", how, (Panel("all prompts", plot),), tuple(legend))


def _step(arm: str, tokens: int, count: int, here: Sequence[Series]) -> Point:
    spread = together(here, lambda seen: seen.step_ms)
    return Point(1 + tokens, spread, f"{arm}, {count} at a time: {spread.middle:.1f} ms a step", family_of(arm))


def _latency(file: BenchFile, found: Sequence[Series]) -> Figure:
    counts = sorted({one.place.concurrency for one in found})
    panels = []
    for title, name in _LATENCIES:
        groups = []
        for count in counts:
            rows = [
                _percentiles(file, arm, name, here)
                for arm in file.arms
                if (here := [one for one in found if one.arm == arm.name and one.place.concurrency == count])
            ]
            groups.append((f"{count} at a time", rows))
        panels.append(Panel(title, svg.rows(f"{title}: percentiles", "ms", groups)))
    how = (
        "From the median (disc) over the 90th (ring) to the 99th percentile (stroke) of the requests, over all prompts."
    )
    return Figure("Latency percentiles", how, tuple(panels), ())


def _percentiles(file: BenchFile, arm: ArmLine, name: str, here: Sequence[Series]) -> Row:
    def ranked(rank: str) -> float:
        return together(here, lambda seen: getattr(getattr(seen, name), rank)).middle

    values = (ranked("p50"), ranked("p90"), ranked("p99"))
    note = f"{arm.title}: median {values[0]:.1f}, 90 % {values[1]:.1f}, 99 % {values[2]:.1f} ms"
    return Row(arm.name, colour(file, arm.name), values, note)
