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
from deployer.serve.decoding import Decoding
from deployer.serve.options import as_yaml
from deployer.serve.render import Engine, Files, Place, environment_file, render

AR = "ar"
_NAME = re.compile(r"(ar)|(mtp|chain|tree)(?::([1-9]\d*))?")
_MTP_TOKENS = 2
# An arm is a measurement: it must not come back by itself.
_ONCE = "\n[Service]\nRestart=no\n"


@dataclass(frozen=True)
class Arm:
    """One way to decode, ready to run: the files of its unit and the client's environment. `proof` is what its gate
    asks for.
    """

    line: ArmLine
    proof: Decoding
    files: Files
    client: Secret

    @property
    def name(self) -> str:
        return self.line.name


def usual(inventory: Inventory, *, mtp: bool = False) -> tuple[str, ...]:
    """Plain decoding, the target's own head if it has one, the DFlash chain, and the tree unless it is switched off."""
    return (AR, *(["mtp"] if mtp else []), "chain", *(["tree"] if inventory.tree.enabled else []))


def arms(
    inventory: Inventory,
    bench: Bench,
    engine: Engine,
    names: Sequence[str],
    *,
    nodes: tuple[str, ...],
    secrets: Mapping[str, Secret],
) -> tuple[Arm, ...]:
    """The arms by name: ar, mtp[:K], chain[:K], tree[:B]; without a number the inventory's own. Each once."""
    made = (_arm(inventory, bench, engine, name, nodes, secrets) for name in names)
    return tuple({arm.name: arm for arm in made}.values())


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
    return Arm(line, how, replace(files, dropin=files.dropin + _ONCE), environment_file({}, key))


def _named(inventory: Inventory, name: str) -> tuple[ArmLine, Decoding]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(
            f"{name!r} is no arm", where="--arms", remedy="ar, mtp[:K], chain[:K] or tree[:B], as in ar,chain:7,tree:31"
        )
    kind, number = match[2] or AR, int(match[3]) if match[3] else None
    if kind == AR:
        how = decoding.autoregressive()
        return ArmLine(name=AR, title=str(how), tokens=0), how
    if kind == "mtp":
        tokens = number or _MTP_TOKENS
        return ArmLine(name=f"mtp:{tokens}", title=f"MTP head, K={tokens}", tokens=tokens), Decoding("chain", tokens)
    how = _chain(inventory, number) if kind == "chain" else _tree(inventory, number)
    return ArmLine(name=f"{kind}:{how.tokens}", title=str(how), tokens=how.tokens), how


def _chain(inventory: Inventory, tokens: int | None) -> Decoding:
    width = decoding.drafter_width(inventory)
    if tokens is not None and tokens > width:
        raise UsageError(f"the drafter predicts {width} tokens, not {tokens}", where="--arms", remedy=f"chain:{width}")
    return decoding.chain(inventory) if tokens is None else Decoding("chain", tokens)


def _tree(inventory: Inventory, budget: int | None) -> Decoding:
    if budget is not None and budget > 63:
        raise UsageError(f"a tree has at most 63 nodes, not {budget}", where="--arms", remedy="tree:63")
    tree = inventory.tree if budget is None else inventory.tree.model_copy(update={"budget": budget})
    return decoding.tree(inventory.model_copy(update={"tree": tree}))
