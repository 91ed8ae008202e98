"""What `tune` found, in words: for the terminal, and as comments of the file for who reviews it. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from deployer.bench.arms import AR
from deployer.serve.decoding import requests
from deployer.tune.model import Choice, Curve, Guess, Pick, Seen, Trial, Tuning


def sentences(choice: Choice, made: Sequence[Trial], arm: str, titles: Mapping[str, str]) -> tuple[str, ...]:
    """What is to be served and why; where something else is faster; and what the numbers do not tell apart."""
    return (_served(choice, made, arm, titles), *(line for pick in choice.picks for line in _exceptions(pick, titles)))


def _served(choice: Choice, made: Sequence[Trial], arm: str, titles: Mapping[str, str]) -> str:
    if arm == AR:
        beaten = "no chain and no tree" if choice.arm == AR else f"{titles[choice.arm]} was chosen first, but it"
        return f"Serve without drafts: {beaten} is {'' if choice.arm == AR else 'not '}faster by more than chance."
    gains = ", ".join(_gain(trial, arm) for trial in made)
    if arm == choice.arm:
        return f"Serve {titles[arm]}: {gains}; in rounds that it was not chosen by."
    return f"Serve {titles[arm]}: {gains}. {titles[choice.arm]}, chosen first, is not faster by more than chance."


def _gain(trial: Trial, arm: str) -> str:
    others = [one for one in trial.seen if one.arm not in (arm, AR)]
    mine = trial.speed(arm)
    text = f"{mine / trial.speed(AR):.2f} times plain decoding"
    if others:
        best = max(others, key=lambda one: one.output_tokens_per_second)
        text += f" and {mine / best.output_tokens_per_second:.2f} times {best.arm}"
    return f"with {requests(trial.concurrency)} {text} (chance: up to {trial.doubt:.2f})"


def _exceptions(pick: Pick, titles: Mapping[str, str]) -> Iterable[str]:
    if pick.arm != pick.fastest and pick.arm not in pick.equals:
        ratio = pick.speed(pick.fastest) / pick.speed(pick.arm)
        yield (
            f"With {requests(pick.concurrency)} {titles[pick.fastest]} is {ratio:.2f} times as fast as what this engine "
            f"does best there, {titles[pick.arm]}."
        )
    same = [titles[arm] for arm in (pick.fastest, *pick.equals) if arm != pick.arm]
    if same and (pick.arm == pick.fastest or pick.arm in pick.equals):
        yield f"With {requests(pick.concurrency)} {titles[pick.arm]} cannot be told from {', '.join(same)}."


def estimated(accepted: Curve | None, better: Sequence[Guess]) -> tuple[str, ...]:
    """What was not measured and might be worth it, and how far the estimate can be trusted."""
    said = [
        f"With {requests(guess.concurrency)} a tree of {guess.tokens} nodes should be {guess.gain:.2f} times as fast as "
        f"{guess.beside}: add tree:{guess.tokens} to --arms to measure it."
        for guess in better
    ]
    if said and accepted and accepted.largest_error is not None:
        said.append(
            f"An estimate from {accepted.arm}, whose counters miss what smaller trees accepted by up to "
            f"{accepted.largest_error:.1%}."
        )
    return tuple(said)


def grid(tuning: Tuning, width: int = 132) -> str:
    """Every arm at every number of requests: speed and its range, cost of a step, accepted tokens."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(_table("chosen by", [(pick.concurrency, pick.seen) for pick in tuning.choice.picks]))
    if tuning.trials:
        console.print(_table("confirmed by", [(trial.concurrency, trial.seen) for trial in tuning.trials]))
    for line in tuning.sentences:
        console.print(line, markup=False)
    return out.getvalue()


def _table(title: str, rows: Sequence[tuple[int, Sequence[Seen]]]) -> Table:
    made = Table(title=title, title_justify="left")
    for heading in ("requests", "arm", "tokens/s", "range", "ms a step", "tokens a step"):
        made.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=True)
    for concurrency, found in rows:
        for one in found:
            made.add_row(*_cells(concurrency, one))
        made.add_section()
    return made


def _cells(concurrency: int, one: Seen) -> tuple[str, ...]:
    return (
        str(concurrency),
        one.arm,
        f"{one.output_tokens_per_second:.1f}",
        f"{one.low:.1f}-{one.high:.1f}",
        f"{one.step_ms:.1f}",
        f"{one.acceptance_length:.2f}",
    )
