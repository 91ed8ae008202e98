"""`smoke`: what a CI asks of a box that is up. Every assertion is one line; the first that fails is the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from deployer.bench.prompts import texts
from deployer.errors import GateError, UsageError
from deployer.inventory.model import Inventory
from deployer.plan.step import Progress
from deployer.serve import decoding, gate, metrics
from deployer.serve.decoding import Decoding
from deployer.serve.endpoint import Completion
from deployer.serve.gate import Clock, Proof, Wanted
from deployer.serve.metrics import Counters
from deployer.serve.service import Service
from deployer.transport.base import Transport

OFF: Mapping[str, object] = {"vllm_xargs": {"ddtree": "off"}}
# bf16 logits near 20 are 0.125 apart: two tokens whose log-probabilities are closer than two such steps are a tie.
NEAR_TIE = 0.25
_PROMPTS, _TOKENS, _TOP = 4, 32, 5
_TIMEOUT = 300.0
_ATTEMPTS, _PAUSE = 4, 10.0  # seconds between them
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Difference:
    """Where two greedy outputs part: after how many tokens, and the plain one's log-probability gap there."""

    position: int
    plain: str
    tree: str
    gap: float | None

    @property
    def tie(self) -> bool:
        return self.gap is not None and self.gap <= NEAR_TIE


def smoke(inventory: Inventory, transport: Transport, progress: Progress, clock: Clock | None = None) -> None:
    """Raises GateError at the first assertion that does not hold, or cannot be judged; UsageError without [serve] expect.

    The gate lets a busy service pass whose drafts it cannot see; here 0 means that everything was seen.
    """
    clock = clock or Clock()
    if not inventory.serve.expect:
        raise UsageError(
            "[serve] expect is not set: any text would do as the known completion",
            where=f"inventory {inventory.name}",
            remedy="set it to words of the target's own answer to [serve] prompt at temperature 0",
        )
    service, how = Service.of(inventory, transport), decoding.served(inventory)
    state = service.state()
    if not state.running:
        raise GateError(f"{service.layout.unit} is {state.active}", where=transport.name, remedy="ddtree-deploy serve")
    wanted = Wanted.of(inventory, how)

    def proved() -> Proof | None:
        proof = gate.prove(service, wanted, progress.say, clock)
        return proof if proof.judged else None

    proof = _unless_busy(service, proved, progress, clock)
    progress.say(f"health, models, completion and speculation hold: {proof}")
    if how.kind != "tree":
        progress.say(f"the inventory serves no tree ({how}): there is none to compare with")
        return
    prompts = list(dict.fromkeys([inventory.serve.prompt, *texts(inventory)]))[:_PROMPTS]
    answers = _unless_busy(service, lambda: _by_trees(service, how, prompts, clock), progress, clock)
    plain = _unless_busy(service, lambda: _plainly(service, prompts, clock), progress, clock)
    _agreement(service, prompts, answers, plain, progress)
    progress.say(f"greedy agreement of tree and plain decoding on {len(prompts)} prompts")


def _unless_busy(service: Service, seen: Callable[[], Seen | None], progress: Progress, clock: Clock) -> Seen:
    """What was seen, tried a few times as long as others hide it. Raises GateError if they do not cease to."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            progress.say(f"busy; again in {_PAUSE:.0f} s")
            clock.sleep(_PAUSE)
        found = seen()
        if found is not None:
            return found
    raise GateError(
        "busy: cannot be judged, since others run: with so many requests nothing is drafted by the table, or the trees that "
        "rise may be theirs",
        where=service.where,
        remedy="smoke again when fewer run (ddtree-deploy status says how many), or keep clients away meanwhile",
    )


def _by_trees(service: Service, how: Decoding, prompts: Sequence[str], clock: Clock) -> list[Completion] | None:
    """Answers during which trees were verified; None when others hid that. Raises GateError if none were."""
    clock.sleep(2 * gate.SCRAPE)  # what was asked before is counted by then
    before = service.counters()
    answers = [_ask(service, prompt, None) for prompt in prompts]
    now, still = gate.until_risen(service, before, [metrics.TREES], clock)
    if not still:
        return answers
    if gate.crowded(how, before, now, _TOKENS * len(prompts)):
        return None
    raise GateError(
        f"{metrics.TREES} did not rise during {len(prompts)} completions: there is no tree to compare plain decoding with",
        where=service.where,
        remedy="see its journal for the plugin ddtree and the drafter: ddtree-deploy logs",
    )


def _settled(service: Service, clock: Clock) -> Counters:
    """A scrape when no tree of earlier requests is still to be counted, unless others run."""
    now = service.counters()
    for _ in range(_ATTEMPTS):
        clock.sleep(2 * gate.SCRAPE)
        before, now = now, service.counters()
        if now[metrics.TREES] == before[metrics.TREES]:
            break
    return now


def _plainly(service: Service, prompts: Sequence[str], clock: Clock) -> list[Completion] | None:
    """Answers with the tree switched off, during which none was verified; None when others hide that. Raises GateError if
    the switch switches nothing: a tree would agree with itself.
    """
    before = _settled(service, clock)
    answers = [_ask(service, prompt, OFF) for prompt in prompts]
    clock.sleep(2 * gate.SCRAPE)
    now = service.counters()
    if now[metrics.TREES] <= before[metrics.TREES]:
        return answers
    if gate.accompanied(before, now, _TOKENS * len(prompts)):
        return None
    raise GateError(
        f"{metrics.TREES} rose during {len(prompts)} completions whose requests switch the tree off: what they say is no "
        "plain decoding to compare with",
        where=service.where,
        remedy="install the release of this checkout (ddtree-deploy up): the engine there does not know the switch",
    )


def _agreement(
    service: Service,
    prompts: Sequence[str],
    answers: Sequence[Completion],
    plain: Sequence[Completion],
    progress: Progress,
) -> None:
    """Raises GateError where a tree's answer is not plain decoding's."""
    for prompt, tree, expected in zip(prompts, answers, plain, strict=True):
        found = first_difference(expected, tree)
        if found is None:
            continue
        if not found.tie:
            raise GateError(
                f"tree and plain decoding differ at token {found.position} of {prompt[:40]!r}: "
                f"{found.tree!r} against {found.plain!r}, log-probability gap {found.gap}",
                where=service.where,
                remedy=f"more than a tie ({NEAR_TIE}): do not serve this tree; set [tree] enabled = false",
            )
        progress.say(f"{prompt[:40]!r}: a tie at token {found.position}, gap {found.gap:.3f}")


def _ask(service: Service, prompt: str, extra: Mapping[str, object] | None) -> Completion:
    """GateError for an answer without tokens: two of them would agree on nothing."""
    answer = service.endpoint.complete(service.model, prompt, _TOKENS, timeout=_TIMEOUT, top=_TOP, extra=extra)
    if not answer.tokens or len(answer.top) != len(answer.tokens):
        raise GateError(
            f"the completion of {prompt[:40]!r} came without its tokens' log-probabilities",
            where=service.where,
            remedy="take out of [serve.options] what forbids them (max-logprobs)",
        )
    return answer


def first_difference(plain: Completion, tree: Completion) -> Difference | None:
    """None when the tokens are the same. The gap is None when the tree's token was not on plain decoding's list."""
    for position, (expected, got) in enumerate(zip(plain.tokens, tree.tokens, strict=False)):
        if expected != got:
            chances = plain.top[position]
            gap = chances[expected] - chances[got] if expected in chances and got in chances else None
            return Difference(position, expected, got, gap)
    if len(plain.tokens) != len(tree.tokens):
        shorter = min(len(plain.tokens), len(tree.tokens))
        return Difference(shorter, f"{len(plain.tokens)} tokens", f"{len(tree.tokens)} tokens", None)
    return None
