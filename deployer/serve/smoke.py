"""`smoke`: what a CI asks of a box that is up. Every assertion is one line; the first that fails is the error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deployer.bench.prompts import texts
from deployer.errors import GateError
from deployer.inventory.model import Inventory
from deployer.plan.step import Progress
from deployer.serve import decoding, gate
from deployer.serve.endpoint import Completion
from deployer.serve.gate import Wanted
from deployer.serve.service import Service
from deployer.transport.base import Transport

OFF: Mapping[str, object] = {"vllm_xargs": {"ddtree": "off"}}
# bf16 logits near 20 are 0.125 apart: two tokens whose log-probabilities are closer than two such steps are a tie.
NEAR_TIE = 0.25
_PROMPTS, _TOKENS, _TOP = 4, 32, 5
_TIMEOUT = 300.0


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


def smoke(inventory: Inventory, transport: Transport, progress: Progress) -> None:
    """Raises GateError at the first assertion that does not hold."""
    service, how = Service.of(inventory, transport), decoding.served(inventory)
    state = service.state()
    if not state.running:
        raise GateError(f"{service.layout.unit} is {state.active}", where=transport.name, remedy="ddtree-deploy serve")
    wanted = Wanted.of(inventory, how)
    proof = gate.prove(service, wanted, progress.say)
    progress.say(f"health, models, completion and speculation hold: {proof}")
    if how.kind != "tree":
        progress.say(f"the inventory serves no tree ({how}): there is none to compare with")
        return
    agreeing = _agreement(service, inventory, progress)
    progress.say(f"greedy agreement of tree and plain decoding on {agreeing} prompts")


def _agreement(service: Service, inventory: Inventory, progress: Progress) -> int:
    prompts = list(dict.fromkeys([inventory.serve.prompt, *texts(inventory)]))[:_PROMPTS]
    for prompt in prompts:
        tree, plain = _ask(service, prompt, None), _ask(service, prompt, OFF)
        found = first_difference(plain, tree)
        if found is None:
            continue
        if not found.tie:
            raise GateError(
                f"tree and plain decoding differ at token {found.position} of {prompt[:40]!r}: "
                f"{found.tree!r} against {found.plain!r}, log-probability gap {found.gap}",
                where=service.endpoint.where,
                remedy=f"more than a tie ({NEAR_TIE}): do not serve this tree; set [tree] enabled = false",
            )
        progress.say(f"{prompt[:40]!r}: a tie at token {found.position}, gap {found.gap:.3f}")
    return len(prompts)


def _ask(service: Service, prompt: str, extra: Mapping[str, object] | None) -> Completion:
    return service.endpoint.complete(service.model, prompt, _TOKENS, timeout=_TIMEOUT, top=_TOP, extra=extra)


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
