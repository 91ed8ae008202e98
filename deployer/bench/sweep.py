"""What a sweep measures and in which order: arms, prompt sets, temperatures, concurrencies, rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deployer.bench.model import OWN, Conditions
from deployer.bench.prompts import PromptSet, named
from deployer.errors import UsageError
from deployer.inventory.model import Inventory

WARM_UPS = 2
SEED = 20_240  # the first round's; every round draws anew at a temperature above 0
# A cell needs every place of its batch taken more than once, or it measures the way up and down.
_FILLS = 2


@dataclass(frozen=True)
class Sweep:
    """Every combination of these is one cell. Arms are names (see deployer.bench.arms)."""

    arms: tuple[str, ...]
    sets: tuple[PromptSet, ...]
    temperatures: tuple[str, ...]
    concurrency: tuple[int, ...]
    rounds: int
    num_prompts: int
    output_tokens: int
    one_load: bool = False
    first_round: int = 1

    def conditions(self, arms: Sequence[str], *, template: bool) -> tuple[Conditions, ...]:
        """The cells, round by round. `template` says whether the target has a chat template."""
        return tuple(
            self._conditions(arm, prompts, temperature, concurrency, round_, template)
            for round_ in range(self.first_round, self.first_round + self.rounds)
            for arm in (arms if round_ % 2 else tuple(reversed(arms)))
            for prompts in self.sets
            for temperature in self.temperatures
            for concurrency in self.concurrency
        )

    def _conditions(
        self, arm: str, prompts: PromptSet, temperature: str, concurrency: int, round_: int, template: bool
    ) -> Conditions:
        requests = max(self.num_prompts, _FILLS * concurrency)
        return Conditions(
            arm=arm,
            prompts=prompts.name,
            prompts_digest=prompts.digest(requests),
            chat_template=template and prompts.chat,
            temperature=temperature,
            concurrency=concurrency,
            requests=requests,
            output_tokens=self.output_tokens,
            warm_ups=WARM_UPS,
            seed=SEED + round_ - 1,
            round=round_,
        )


@dataclass(frozen=True)
class Load:
    """One start of one arm's engine, and what is measured while it is up."""

    arm: str
    cells: tuple[Conditions, ...]


def loads(cells: Iterable[Conditions], *, one_load: bool = False) -> tuple[Load, ...]:
    """The starts that the cells need, in their order: neighbours of the same arm share one.

    Every other round goes backwards, so that what drifts (clocks, temperature) meets all arms alike, and the arm at the
    turn stays up. `one_load` gives that up: all of an arm's rounds in one start.
    """
    cells = list(cells)
    if one_load:
        order = list(dict.fromkeys(cell.arm for cell in cells))
        cells.sort(key=lambda cell: order.index(cell.arm))
    made: list[Load] = []
    for cell in cells:
        if made and made[-1].arm == cell.arm:
            made[-1] = Load(cell.arm, (*made[-1].cells, cell))
        else:
            made.append(Load(cell.arm, (cell,)))
    return tuple(made)


def sweep_of(
    inventory: Inventory,
    *,
    arms: str | None = None,
    sets: str | None = None,
    concurrency: str | None = None,
    temperature: str | None = None,
    rounds: int | None = None,
    one_load: bool = False,
) -> Sweep:
    """What the command line asks for, else [bench] of the inventory. UsageError names the option and the word."""
    asked = inventory.bench
    return Sweep(
        arms=_words(arms) or asked.arms,
        sets=tuple(named(word, inventory) for word in _words(sets) or asked.sets or ("",)),
        temperatures=tuple(_temperature(word) for word in _words(temperature) or asked.temperature),
        concurrency=tuple(_count(word) for word in _words(concurrency)) or asked.concurrency,
        rounds=rounds or asked.rounds,
        num_prompts=asked.num_prompts,
        output_tokens=asked.output_tokens,
        one_load=one_load,
    )


def _words(text: str | None) -> tuple[str, ...]:
    """Each once, in their order. A comma after a colon's options belongs to them: vllm:random,random-input-len=64."""
    words: list[str] = []
    for word in (text or "").split(","):
        if "=" in word and words:
            words[-1] += f",{word.strip()}"
        elif word.strip():
            words.append(word.strip())
    return tuple(dict.fromkeys(words))


def _count(word: str) -> int:
    if not word.isdigit() or not int(word):
        raise UsageError(f"{word!r} is no number of requests at a time", where="--concurrency", remedy="1,2,4,8")
    return int(word)


def _temperature(word: str) -> str:
    """As a request says it: 0, 0.7, or `own`."""
    if word == OWN:
        return word
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise UsageError(
            f"{word!r} is no temperature",
            where="--temperature",
            remedy=f"a number from 0 to 2, or {OWN}: the model's own sampling defaults",
        )
    return f"{value:g}"
