"""The arms of a bench: the same engine, host and prompts, decoding in different ways. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deployer.bench.model import ArmLine
from deployer.bench.place import Bench
from deployer.errors import UsageError
from deployer.inventory.model import Inventory
from deployer.inventory.secret import Secret
from deployer.plan.layout import Layout
from deployer.serve import decoding
from deployer.serve.decoding import MAX_BUDGET, Decoding, TreeOrChain
from deployer.serve.options import as_yaml
from deployer.serve.render import Engine, Files, Place, environment_file, render

AR = "ar"
_TIERS = r"\d+@[1-9]\d*(?:\+\d+@[1-9]\d*)*"
# A tree may have no nodes: an engine that drafts and verifies nothing of it.
_NAME = re.compile(rf"(ar)|(mtp)(?::([1-9]\d*))?|(chain)(?::([1-9]\d*|{_TIERS}))?|(tree)(?::(\d+|{_TIERS}))?")
_MTP_TOKENS = 2
# An arm is a measurement: it must not come back by itself.
_ONCE = "\n[Service]\nRestart=no\n"


@dataclass(frozen=True)
class Arm:
    """One way to decode, ready to run: the files of its unit and the client's environment. `proof` is what its gate
    asks for.
    """

    line: ArmLine
    decoding: Decoding
    proof: Decoding
    files: Files
    client: Secret

    @property
    def name(self) -> str:
        return self.line.name


def usual(inventory: Inventory, *, mtp: bool = False) -> tuple[str, ...]:
    """Plain decoding, the target's own head if it has one, the DFlash chain, and the tree if that is what is served."""
    return (AR, *(["mtp"] if mtp else []), "chain", *(["tree"] if decoding.served(inventory).kind == "tree" else []))


def arms(
    inventory: Inventory,
    bench: Bench,
    engine: Engine,
    names: Sequence[str],
    *,
    nodes: tuple[str, ...],
    secrets: Mapping[str, Secret],
) -> tuple[Arm, ...]:
    """The arms by name: ar, mtp[:K], chain[:K], tree[:B]; without a number the inventory's own. Each once.

    K and B may change with the batch: tree:31@2+15@8 has 31 nodes up to 2 requests, 15 up to 8 and above.
    """
    made = (_arm(inventory, bench, engine, name, nodes, secrets) for name in names)
    return tuple({arm.name: arm for arm in made}.values())


def lines(inventory: Inventory, names: Sequence[str]) -> tuple[ArmLine, ...]:
    """What the names mean with this inventory: tree may be tree:15, or by batch size what was tuned."""
    return tuple(dict.fromkeys(_named(inventory, name)[0] for name in names))


def _arm(
    inventory: Inventory,
    bench: Bench,
    engine: Engine,
    name: str,
    nodes: tuple[str, ...],
    secrets: Mapping[str, Secret],
) -> Arm:
    line, how = _named(inventory, name)
    place = Place(bench.layout.service, Layout.of(inventory).service, bench.config, bench.environment, bench.port)
    mtp = line.name.startswith("mtp")
    drawn = replace(engine, decoding=decoding.autoregressive() if mtp else how)
    files = render(inventory, place, drawn, nodes, secrets)
    if mtp:
        # A baseline of the bench alone: no service of this program decodes so.
        speculative = {"method": "mtp", "num_speculative_tokens": line.tokens}
        files = replace(files, config=files.config + as_yaml({"speculative-config": speculative}))
    key = {"OPENAI_API_KEY": secrets["VLLM_API_KEY"]} if "VLLM_API_KEY" in secrets else {}
    # One request alone is what the gate asks.
    proof = how if how.alone else decoding.autoregressive()
    return Arm(line, how, proof, replace(files, dropin=files.dropin + _ONCE), environment_file({}, key))


def _named(inventory: Inventory, name: str) -> tuple[ArmLine, Decoding]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(
            f"{name!r} is no arm",
            where="--arms",
            remedy="ar, mtp[:K], chain[:K] or tree[:B], as in ar,chain:7,tree:31; by batch size tree:31@2+15@8",
        )
    kind, said, *_ = [*filter(None, match.groups()), None]
    if kind == "mtp":
        tokens = int(said or _MTP_TOKENS)
        return ArmLine(name=f"mtp:{tokens}", title=f"MTP head, K={tokens}", tokens=tokens), Decoding("chain", tokens)
    if kind == AR:
        how = decoding.autoregressive()
    elif kind == "chain":
        how = decoding.chain(inventory) if said is None else _drafting("chain", inventory, _tiers(said))
    else:
        how = decoding.tree(inventory) if said is None else _drafting("tree", inventory, _tiers(said))
    return ArmLine(name=name_of(how), title=str(how), tokens=max(tokens for _, tokens in _spelt(how))), how


def name_of(how: Decoding) -> str:
    """As `--arms` takes it."""
    if how.kind == "autoregressive":
        return AR
    tiers = _spelt(how)
    if len(tiers) == 1:
        return f"{how.kind}:{tiers[0][1]}"
    return f"{how.kind}:" + "+".join(f"{tokens}@{last}" for last, tokens in tiers)


def _spelt(how: Decoding) -> list[tuple[int, int]]:
    """(up to so many requests, tokens)."""
    return [(last, tokens) for _, last, tokens in how.table] or [(1, how.tokens)]


def _tiers(said: str) -> list[tuple[int, int]]:
    """(tokens, up to so many requests) of a number, or of a list with @."""
    pairs = (tier.partition("@") for tier in said.split("+"))
    return [(int(tokens), int(last or 1)) for tokens, _, last in pairs]


def _drafting(kind: TreeOrChain, inventory: Inventory, tiers: list[tuple[int, int]]) -> Decoding:
    width = decoding.drafter_width(inventory)
    widest, sizes = max(tokens for tokens, _ in tiers), [size for _, size in tiers]
    if kind == "chain" and widest > width:
        raise UsageError(f"the drafter predicts {width} tokens, not {widest}", where="--arms", remedy=f"chain:{width}")
    if kind == "chain" and not widest:
        raise UsageError("a chain of no tokens is no chain", where="--arms", remedy="ar")
    if kind == "tree" and width > MAX_BUDGET:
        what = f"the drafter predicts {width} tokens, and a tree has at most {MAX_BUDGET} nodes"
        raise UsageError(what, where="--arms", remedy=f"chain:{width}")
    if kind == "tree" and widest > MAX_BUDGET:
        raise UsageError(f"a tree has at most {MAX_BUDGET} nodes, not {widest}", where="--arms", remedy="tree:63")
    if sizes != sorted(set(sizes)):
        raise UsageError(f"{sizes} requests do not go up", where="--arms", remedy="tree:31@2+15@8")
    return decoding.tiered(kind, width, tiers)
