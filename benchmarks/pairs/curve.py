"""A training run as it went: JSON of its points, and an SVG that shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP = 640, 320, 52, 24
OPEN = '<svg xmlns="http://www.w3.org/2000/svg"'
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def save_json(points: Sequence[dict[str, float]], path: Path) -> None:
    path.write_text(json.dumps([{k: round(v, 5) for k, v in point.items()} for point in points]) + "\n")


def svg(points: Sequence[dict[str, float]], series: Sequence[str], title: str) -> str:
    """Lines of `series` over `step`; each point needs the keys it has, and a series may lack some points."""
    held = [[(p["step"], p[name]) for p in points if name in p] for name in series]
    xs, ys = [x for line in held for x, _ in line], [y for line in held for _, y in line]
    if not xs:
        return f'{OPEN} width="{WIDTH}" height="{HEIGHT}"><text x="9" y="20">no points</text></svg>'
    x1, y0, y1 = max(xs) or 1, min(0.0, *ys), max(ys) or 1.0
    parts = [
        f'{OPEN} viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{LEFT}" y="15">{title}</text>',
    ]

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / x1 * (WIDTH - LEFT - 10), HEIGHT - 28 - (y - y0) / ((y1 - y0) or 1) * (HEIGHT - 28 - TOP)

    for i in range(5):
        y, x = y0 + (y1 - y0) * i / 4, x1 * i / 4
        parts.append(f'<path d="M{LEFT} {at(0, y)[1]:.1f}H{WIDTH - 10}" stroke="#ddd"/>')
        parts.append(f'<text x="4" y="{at(0, y)[1] + 4:.1f}">{y:.2f}</text>')
        parts.append(f'<text x="{at(x, y0)[0] - 8:.1f}" y="{HEIGHT - 10}">{x:.0f}</text>')
    for i, (name, line) in enumerate(zip(series, held, strict=True)):
        if line:
            path = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in line)
            parts.append(f'<path d="M{path}" fill="none" stroke="{COLOURS[i]}"/>')
        parts.append(f'<text x="{WIDTH - 150}" y="{TOP + 14 * (i + 1)}" fill="{COLOURS[i]}">{name}</text>')
    return "".join([*parts, "</svg>\n"])
