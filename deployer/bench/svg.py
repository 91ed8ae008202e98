"""Plots as inline SVG: text made from numbers, coloured by the page's style sheet. Pure; nothing is fetched or scripted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from deployer.bench.series import Spread

WIDTH, HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 42
_ROW, _GROUP = 19, 24
_ROW_LABELS = 88
_SHAPES = {"ar": "circle", "mtp": "square", "chain": "triangle", "tree": "diamond"}


@dataclass(frozen=True)
class Point:
    """`x` in the axis' own unit, `y` with its range, `note` for whoever points at it. `shape` is an arm's kind."""

    x: float
    y: Spread
    note: str
    shape: str


@dataclass(frozen=True)
class Line:
    """Points that belong together. `colour` is a class of the style sheet."""

    colour: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Axis:
    """`ticks` are places and their words; without any they are round numbers."""

    label: str
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of a chart of percentiles: three values from left to right."""

    label: str
    colour: str
    values: tuple[float, float, float]
    note: str


def lines(what: str, x: Axis, y: Axis, drawn: Sequence[Line], *, rule: float | None = None) -> str:
    """Lines with the range of each point. y starts at 0; `rule` is a value to compare with, drawn across."""
    points = [point for line in drawn for point in line.points]
    x_ticks = x.ticks or tuple((value, number(value)) for value in nice(max(point.x for point in points)))
    x_low = min(tick for tick, _ in x_ticks)
    x_scale = _Scale(x_low, max(*(tick for tick, _ in x_ticks), *(p.x for p in points)), _LEFT + 8, WIDTH - _RIGHT - 8)
    y_ticks = nice(max(*(point.y.high for point in points), rule or 0.0))
    y_scale = _Scale(0.0, y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    parts = [_across(y_scale(value), number(value)) for value in y_ticks]
    parts += [_text(x_scale(value), HEIGHT - _BOTTOM + 16, word, "middle") for value, word in x_ticks]
    parts += [_text((WIDTH + _LEFT - _RIGHT) / 2, HEIGHT - 6, x.label, "middle", "label"), _upright(y.label)]
    if rule is not None:
        parts.append(f'<path class="rule" d="M{_LEFT} {_n(y_scale(rule))}H{WIDTH - _RIGHT}"/>')
    parts += [_line(line, x_scale, y_scale) for line in drawn]
    return _svg(what, HEIGHT, parts)


def rows(what: str, label: str, groups: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """For each row a bar from its first to its last value, with a mark at each; groups with a heading."""
    height = sum(_GROUP + _ROW * len(group) for _, group in groups) + _BOTTOM
    ticks = nice(max(row.values[-1] for _, group in groups for row in group))
    scale = _Scale(0.0, ticks[-1], _ROW_LABELS, WIDTH - _RIGHT - 8)
    floor = height - _BOTTOM
    parts = [f'<path class="grid" d="M{_n(scale(value))} 8V{floor}"/>' for value in ticks]
    parts += [_text(scale(value), floor + 16, number(value), "middle") for value in ticks]
    parts.append(_text((WIDTH + _ROW_LABELS - _RIGHT) / 2, height - 6, label, "middle", "label"))
    top = 0.0
    for heading, group in groups:
        parts.append(_text(4, top + 17, heading, "start", "label"))
        parts += [_row(row, scale, top + _GROUP + _ROW * (index + 0.5)) for index, row in enumerate(group)]
        top += _GROUP + _ROW * len(group)
    return _svg(what, height, parts)


def nice(highest: float) -> tuple[float, ...]:
    """Four to seven round numbers from 0 to at least `highest`."""
    if highest <= 0:
        return (0.0, 1.0)
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return tuple(step * index for index in range(math.ceil(highest / step - 1e-9) + 1))


def number(value: float) -> str:
    """As short as it is still told from its neighbours: 0.25, 1.5, 20, 4k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{float(f'{value:.4g}'):g}"


def marker(shape: str, colour: str, size: int = 14) -> str:
    """One mark by itself, for a legend."""
    middle = size / 2
    return (
        f'<svg class="mark" width="{size}" height="{size}" aria-hidden="true">'
        f'<g class="{colour}">{_mark(shape, middle, middle)}</g></svg>'
    )


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.end - self.start)


def _line(line: Line, x: _Scale, y: _Scale) -> str:
    at = [(x(point.x), point) for point in line.points]
    path = "L".join(f"{_n(place)} {_n(y(point.y.middle))}" for place, point in at)
    ranges = "".join(
        f'<path class="range" d="M{_n(place)} {_n(y(point.y.low))}V{_n(y(point.y.high))}"/>'
        for place, point in at
        if point.y.low != point.y.high
    )
    marks = "".join(
        f"<g>{_mark(point.shape, place, y(point.y.middle))}<title>{escape(point.note)}</title></g>"
        for place, point in at
    )
    return f'<g class="{line.colour}"><path class="line" d="M{path}"/>{ranges}{marks}</g>'


def _row(row: Row, scale: _Scale, y: float) -> str:
    first, middle, last = (_n(scale(value)) for value in row.values)
    return (
        f"{_text(_ROW_LABELS - 8, y + 4, row.label, 'end')}"
        f'<g class="{row.colour}"><path class="line" d="M{first} {_n(y)}H{last}"/>'
        f'<circle class="fill" cx="{first}" cy="{_n(y)}" r="4"/><circle class="open" cx="{middle}" cy="{_n(y)}" r="3.5"/>'
        f'<path class="line" d="M{last} {_n(y - 5)}V{_n(y + 5)}"/><title>{escape(row.note)}</title></g>'
    )


def _mark(shape: str, x: float, y: float) -> str:
    form = _SHAPES.get(shape, "circle")
    if form == "circle":
        return f'<circle class="fill" cx="{_n(x)}" cy="{_n(y)}" r="4"/>'
    if form == "square":
        return f'<rect class="fill" x="{_n(x - 3.5)}" y="{_n(y - 3.5)}" width="7" height="7"/>'
    corners = [(0.0, -5.0), (4.8, 3.6), (-4.8, 3.6)] if form == "triangle" else [(0, -5), (5, 0), (0, 5), (-5, 0)]
    return f'<path class="fill" d="M{"L".join(f"{_n(x + dx)} {_n(y + dy)}" for dx, dy in corners)}Z"/>'


def _across(y: float, word: str) -> str:
    return f'<path class="grid" d="M{_LEFT} {_n(y)}H{WIDTH - _RIGHT}"/>{_text(_LEFT - 7, y + 4, word, "end")}'


def _upright(word: str) -> str:
    y = (HEIGHT - _BOTTOM + _TOP) / 2
    return (
        f'<text class="label" text-anchor="middle" transform="translate(12 {_n(y)}) rotate(-90)">{escape(word)}</text>'
    )


def _text(x: float, y: float, word: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(word)}</text>'


def _svg(what: str, height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {_n(height)}" width="{WIDTH}" height="{_n(height)}" role="img" '
        f'aria-label="{escape(what)}">{"".join(parts)}</svg>'
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
