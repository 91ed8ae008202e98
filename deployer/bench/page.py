"""A sweep as one HTML page that needs nothing else: no network, no script. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from string import Template

from deployer.bench.figures import Figure, Panel, figures
from deployer.bench.model import BenchFile, Model
from deployer.bench.series import Metric, Series, Spread, match, noise, sampling, series
from deployer.bench.svg import marker
from deployer.bench.table import CPU_REMARK
from deployer.bench.verdict import speed, tpot, verdict


def page(file: BenchFile) -> str:
    """The whole page."""
    found = series(file)
    template = Template(resources.files("deployer.bench").joinpath("page.html").read_text(encoding="utf-8"))
    when = sorted(cell.measured.when for cell in file.cells)
    return template.substitute(
        title=f"Bench of {escape(file.subject.host)}",
        heading=f"How to decode on {escape(file.subject.host)}: {len(file.arms)} ways compared",
        subtitle=f"Measured {_between(when)} by {escape(file.made_by)}",
        verdict=escape(verdict(file, found).sentence),
        remarks="\n".join(f'<p class="remark">{escape(line)}</p>' for line in _remarks(file)) + _noise(found),
        facts="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in _facts(file)),
        figures="\n".join(_figure(figure) for figure in figures(file, found)),
        table=_table(file, found),
    )


def _between(when: Sequence[str]) -> str:
    """Days and minutes, UTC."""
    if not when:
        return "at no time"
    first, last = (moment[:16].replace("T", " ") for moment in (when[0], when[-1]))
    return f"{first} UTC" if first == last else f"{first} to {last} UTC"


def _remarks(file: BenchFile) -> list[str]:
    return [CPU_REMARK] if file.subject.build == "cpu" else []


def noise_sentence(found: Sequence[Series]) -> str:
    """How far the rounds lie apart."""
    seen = noise(found, speed)
    if seen is None:
        return "Everything was measured in one round: how far another one would lie from it is not known."
    rounds = sorted({len(one.rounds) for one in found})
    how_many = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    other = noise(found, tpot)
    beside = f", its median time per token by {other.deviation:.1%}" if other else ""
    return (
        f"Noise: {how_many} rounds. From one to the next an arm's tokens a second differ by {seen.deviation:.1%}{beside} "
        "(standard deviation, pooled over all measurements)."
    )


def _noise(found: Sequence[Series]) -> str:
    return f'<p id="noise">{escape(noise_sentence(found))}</p>'


def _facts(file: BenchFile) -> Iterable[tuple[str, str]]:
    subject, under = file.subject, [cell.conditions for cell in file.cells]
    machine = subject.machine
    yield "Compared", "; ".join(arm.title for arm in file.arms)
    yield "Target", _model(subject.target)
    yield "Drafter", _model(subject.drafter)
    yield (
        "Engine",
        ", ".join(f"{name} {version}" for name, version in subject.versions.items()) + f"; {subject.release}",
    )
    cards = "; ".join(f"{machine.gpus.count(card)} x {card}" for card in dict.fromkeys(machine.gpus)) or "no GPU"
    yield "Machine", f"{cards}{f', driver {machine.driver}' if machine.driver else ''}; {machine.processor}, " \
        f"{machine.cpus} CPUs, {machine.memory_gib:g} GiB; {machine.os}, Linux {machine.kernel}"  # fmt: skip
    if under:
        yield "Prompts", _prompts({one.prompts: one.chat_template for one in under})
        yield "Sampling", ", ".join(dict.fromkeys(sampling(one.temperature) for one in under))
        yield "Requests", _requests([(one.requests, one.concurrency, one.output_tokens, one.warm_ups) for one in under])
    yield from _power(file)


def _model(model: Model) -> str:
    return f"{model.path} ({model.fingerprint[:12]})"


def _prompts(template: dict[str, bool]) -> str:
    """The sets' names, and which of them were sent as what."""
    ways = {True: "in the target's chat template", False: "as plain text"}
    listed = {way: [name for name in template if template[name] == way] for way in ways}
    return "; ".join(f"{', '.join(names)} {ways[way]}" for way, names in listed.items() if names)


def _requests(seen: list[tuple[int, int, int, int]]) -> str:
    counts = ", ".join(str(count) for count in sorted({concurrency for _, concurrency, _, _ in seen}))
    numbers = sorted({requests for requests, _, _, _ in seen})
    amount = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    return (
        f"{amount} for each measurement, {counts} at a time, of at most {max(tokens for _, _, tokens, _ in seen)} tokens; "
        f"{max(warm for *_, warm in seen)} batches before each are not counted"
    )


def _power(file: BenchFile) -> Iterable[tuple[str, str]]:
    uses = [use for cell in file.cells for use in cell.measured.gpus]
    for label, name, unit in (
        ("GPU memory", "memory_mib", "MiB"),
        ("GPU power", "watts", "W"),
        ("GPU clock", "sm_mhz", "MHz"),
    ):
        values = [value for use in uses if (value := getattr(use, name)) is not None]
        if values:
            low, high = f"{min(values):.0f}", f"{max(values):.0f}"
            yield label, f"{low if low == high else f'{low} to {high}'} {unit} a card"


def _figure(figure: Figure) -> str:
    legend = "".join(
        f"<li>{marker(shape, colour)}<span>{escape(words)}</span></li>" for shape, colour, words in figure.legend
    )
    rows = "".join(
        f'<div class="panels">{"".join(map(_panel, row))}</div>'
        for _, row in groupby(figure.panels, key=lambda panel: panel.row)
    )
    key = f'<ul class="legend">{legend}</ul>' if legend else ""
    return f'<section><h2>{escape(figure.title)}</h2><p class="how">{escape(figure.how)}</p>{key}{rows}</section>'


def _panel(panel: Panel) -> str:
    return f"<figure><figcaption>{escape(panel.caption)}</figcaption>{panel.plot}</figure>"


_COLUMNS: tuple[tuple[str, Metric, str], ...] = (
    ("tokens/s", speed, ".1f"),
    ("TTFT p50", lambda seen: seen.ttft.p50, ".1f"),
    ("TPOT p50", tpot, ".2f"),
    ("TPOT p99", lambda seen: seen.tpot.p99, ".2f"),
    ("end to end p50", lambda seen: seen.e2e.p50, ".0f"),
    ("end to end p99", lambda seen: seen.e2e.p99, ".0f"),
    ("acceptance length", lambda seen: seen.acceptance_length, ".2f"),
    ("nodes a step", lambda seen: seen.nodes / seen.trees if seen.trees else 0.0, ".1f"),
    ("off spine", lambda seen: seen.off_spine_share or 0.0, ".0%"),
)


_WORD = ' class="word"'


def _table(file: BenchFile, found: Sequence[Series]) -> str:
    heads = ["prompts", "sampling", "at a time", "arm", *(name for name, _, _ in _COLUMNS), "equal", "control"]
    words = {"prompts", "sampling", "arm"}
    head = "".join(f"<th{_WORD if name in words else ''}>{escape(name)}</th>" for name in heads)
    titles = {arm.name: arm.title for arm in file.arms}
    body = "".join(_table_row(one, titles[one.arm], found) for one in found)
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def _table_row(one: Series, title: str, found: Sequence[Series]) -> str:
    baseline = next((other for other in found if other.arm == "ar" and other.place == one.place), None)
    equal = match(one, baseline)
    words = (one.place.prompts, sampling(one.place.temperature))
    cells = [f'<td class="word">{escape(word)}</td>' for word in words]
    cells += [f"<td>{one.place.concurrency}</td>", f'<td class="word">{escape(title)}</td>']
    cells += [f"<td>{_shown(one, metric, form)}</td>" for _, metric, form in _COLUMNS]
    cells += [
        f"<td>{'–' if share is None else f'{share:.0%}'}</td>"
        for share in (equal and equal.share, equal and equal.control)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _shown(one: Series, metric: Metric, form: str) -> str:
    spread: Spread = one.spread(metric)
    if not spread.high:
        return "–"
    middle, low, high = (format(value, form) for value in (spread.middle, spread.low, spread.high))
    return middle if low == high else f"{middle} ({low}–{high})"
