"""Acceptance of a trained pair in stock vLLM, without ddtree_ext and with it: python -m benchmarks.pairs.evaluate PAIR --out
FOLDER

Arms: ar twice (the second in another batch size, as the control of greedy equality), chain:K, tree:B. Every arm answers
the same prompts at every temperature; each is a process of its own, some at a time on one card. Then the offline pass
(trace.py) over what ar wrote, whose traces simulate.py reads. Writes FOLDER/results.json after every arm, so that a cut run
keeps what it has; prints short tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import acceptance, store, tables, trace, write_text
from benchmarks.pairs.engine import WIDTH, Answer, Ask, answered
from benchmarks.pairs.recipes import RECIPES, Recipe

AT_A_TIME = {"cuda": 5, "cpu": 1}
TRACED = {"cuda": 80, "cpu": 2}
"""Texts of each temperature that the offline pass looks at."""
CONTROL = "ar again"
TRACES, LARGEST = "traces.npz", 15 << 20
"""Where simulate.py finds them, and bytes at most."""


@dataclass(frozen=True)
class Plan:
    """The requests of every arm: one group for each temperature and set, in the order of `groups`."""

    ask: Ask
    groups: tuple[tuple[float, str], ...]
    arms: tuple[str, ...]


def plan(pair: Path, recipe: Recipe, device: str) -> Plan:
    _, evaluation, tokenizer = write_text.prompts(pair, recipe)
    ids = write_text.ids_of(tokenizer, recipe, evaluation)
    kinds = list(dict.fromkeys(prompt.kind for prompt in evaluation))
    groups = [(heat, kind) for heat in recipe.heats for kind in kinds]
    asked = [[row for row, prompt in zip(ids, evaluation, strict=True) if prompt.kind == kind] for _, kind in groups]
    ask = Ask(
        "ar", str(pair), device, asked, [heat for heat, _ in groups], recipe.new, recipe.batch, recipe.max_model_len
    )
    trees, chains = [f"tree:{b}" for b in reversed(recipe.trees)], [f"chain:{k}" for k in reversed(recipe.chains)]
    in_turn = [arm for both in zip_longest(trees, chains) for arm in both if arm]  # a cut run has some of each
    return Plan(ask, tuple(groups), ("ar", *in_turn))


def answers(made: Plan, device: str, folder: Path, deadline: float) -> Iterator[tuple[str, Answer | str]]:
    """(arm, its answer or why there is none) as arms end; arms that cannot begin before `deadline` (monotonic) are left out."""

    def one(arm: str) -> Answer | str:
        left = deadline - time.monotonic()
        if left < 20:
            return "left out: no time"
        ask = (
            replace(made.ask, arm="ar", batch=max(1, made.ask.batch // 4))
            if arm == CONTROL
            else replace(made.ask, arm=arm)
        )
        place = folder / arm.replace(" ", "-").replace(":", "-")
        try:
            return answered(ask, place, left)
        except RuntimeError as error:
            print(f"{arm}: {str(error)[-600:]}; once more, with CUDA graphs where there are any", flush=True)
        try:
            return answered(replace(ask, eager=device == "cpu"), place, max(20.0, deadline - time.monotonic()))
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(AT_A_TIME[device]) as pool:
        begun: dict[str, Future[Answer | str]] = {arm: pool.submit(one, arm) for arm in (*made.arms, CONTROL)}
        for arm, future in begun.items():
            yield arm, future.result()


def rows_of(made: Plan, answer: Answer, heat: float, kind: str | None) -> list[list[int]]:
    """Gains of the requests of one temperature, of one set or of all."""
    chosen = [i for i, (h, k) in enumerate(made.groups) if h == heat and kind in (None, k)]
    return [gains for i in chosen for gains in answer.gains[i]]


def summary(made: Plan, answer: Answer) -> dict[str, Any]:
    """Acceptance of one arm by temperature and set, "all" beside them."""
    found: dict[str, Any] = {}
    for heat in dict.fromkeys(h for h, _ in made.groups):
        kinds = [k for h, k in made.groups if h == heat]
        for kind in (*kinds, None):
            gains = rows_of(made, answer, heat, kind)
            counted = acceptance.counts(gains)
            groups = [i for i, (h, k) in enumerate(made.groups) if h == heat and kind in (None, k)]
            cell = {
                "acceptance": acceptance.acceptance(counted).rounded(),
                "tokens": int(counted[:, 0].sum()),
                "steps": int(counted[:, 1].sum()),
                "accepted_by_depth": acceptance.by_depth(gains, WIDTH),
            }
            trees = [answer.trees[i] for i in groups if answer.trees[i]]
            if trees:
                total = {key: sum(tree.get(key, 0.0) for tree in trees) for key in trees[0]}
                cell["trees"] = total
                cell["off_spine"] = round(
                    total.get("accepted_off_spine", 0.0) / max(1.0, total.get("accepted", 0.0)), 4
                )
            found.setdefault(str(heat), {})[kind or "all"] = cell
    return found


def ratios(made: Plan, got: dict[str, Answer]) -> dict[str, Any]:
    """Tokens per step of each tree over the best chain's, by temperature and set; the best chain is named."""
    chains, found = [arm for arm in got if arm.startswith("chain:")], {}
    if not chains:
        return {}
    for heat in dict.fromkeys(h for h, _ in made.groups):
        for kind in (*[k for h, k in made.groups if h == heat], None):
            counted = {arm: acceptance.counts(rows_of(made, answer, heat, kind)) for arm, answer in got.items()}
            best = max(chains, key=lambda arm: acceptance.acceptance(counted[arm]).value)
            cell = {
                arm: acceptance.ratio(counted[arm], counted[best]).rounded() for arm in got if arm.startswith("tree:")
            }
            found.setdefault(str(heat), {})[kind or "all"] = {"best_chain": best, **cell}
    return found


def equality(made: Plan, got: dict[str, Answer], gaps: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """Greedy outputs of each arm against ar's: how many are equal, and the target's own logit gap where one parts."""
    greedy = [i for i, (heat, _) in enumerate(made.groups) if heat == 0]
    found = {}
    for arm, answer in got.items():
        if arm == "ar" or "ar" not in got:
            continue
        equal, total, at_gaps = 0, 0, []
        for i in greedy:
            same, apart = acceptance.agreement(answer.tokens[i], got["ar"].tokens[i])
            equal, total = equal + same, total + len(answer.tokens[i])
            at_gaps += [round(float(gaps[i, r][w]), 4) for r, w in apart if (i, r) in gaps and w < len(gaps[i, r])]
        found[arm] = {"equal": equal, "of": total, "gaps_where_apart": sorted(at_gaps)}
    return found


def offline(
    made: Plan, ar: Answer, pair: Path, recipe: Recipe, device: str, out: Path
) -> tuple[dict[str, Any], dict[tuple[int, int], Any]]:
    """Hit rates by temperature, and the target's gaps of greedy answers by (group, request).

    Writes OUT/traces.npz, of the lowest and the highest temperature.
    """
    found, gaps, held = {}, {}, {}
    for heat in recipe.heats:
        picked = [(i, r) for i, (h, _) in enumerate(made.groups) if h == heat for r in range(len(made.ask.groups[i]))]
        step = max(1, len(picked) // TRACED[device]) if heat else 1
        picked = picked[::step]
        rows = tuple(made.ask.groups[i][r] + ar.tokens[i][r] for i, r in picked)
        prompts = tuple(len(made.ask.groups[i][r]) for i, r in picked)
        seen = trace.traces(pair, store.Sequences(rows, prompts, (heat,) * len(rows)), device)
        pairs = [(key, t) for key, t in zip(picked, seen, strict=True) if t is not None]
        if heat == 0:
            gaps = {key: t.gaps for key, t in pairs}
        kept = [t for _, t in pairs]
        kept = kept[:: max(1, len(kept) // TRACED[device])]
        order = np.random.default_rng(5).permutation(len(kept))  # a beginning of it holds every set
        held[heat] = [kept[i] for i in order]
        found[str(heat)] = {"texts": len(kept), "hit_rates": trace.hit_rates(kept)}
    saved = trace.save({heat: held[heat] for heat in (min(held), max(held))}, out / TRACES, LARGEST)
    print(f"{TRACES}: texts by temperature {saved}", flush=True)
    return found, gaps


def evaluate(pair: Path, recipe: Recipe, device: str, out: Path, limit: float) -> dict[str, Any]:
    """All arms, then the offline pass; the results, which are written as they come."""
    deadline = time.monotonic() + limit
    made = plan(pair, recipe, device)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"pair": pair.name, "groups": len(made.groups), "arms": {}, "errors": {}}
    for part in ("target/source.json", "drafter/trained.json"):
        if (pair / part).is_file():
            results[part.split("/")[0]] = json.loads((pair / part).read_text())
    got: dict[str, Answer] = {}
    for arm, answer in answers(made, device, pair / "engines", deadline - min(120.0, limit / 4)):
        if isinstance(answer, str):
            results["errors"][arm] = answer
            print(f"{arm}: {answer[-600:]}", flush=True)
        else:
            got[arm] = answer
            results["arms"][arm] = summary(made, answer)
            results["versions"] = answer.versions
            print(f"{arm}: done {time.monotonic() - (deadline - limit):.0f} s", flush=True)
        _write(out, results | {"ratios": ratios(made, got)})
    results["ratios"] = ratios(made, got)
    gaps: dict[tuple[int, int], Any] = {}
    if "ar" in got:
        try:
            results["offline"], gaps = offline(made, got["ar"], pair, recipe, device, out)
        except (
            RuntimeError,
            ValueError,
        ) as error:  # out of memory, say: the engines' numbers are worth keeping without it
            results["errors"]["offline"] = str(error)[-1500:]
    results["equality"] = equality(made, got, gaps)
    _write(out, results)
    print(tables.all_tables(results), flush=True)
    return results


def _write(out: Path, results: dict[str, Any]) -> None:
    (out / "results.json").write_text(json.dumps(results) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.evaluate")
    parser.add_argument("pair", type=Path)
    parser.add_argument("--recipe", choices=RECIPES, default="smollm2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    results = evaluate(given.pair, RECIPES[given.recipe], given.device, given.out, given.minutes * 60)
    return int(bool(results["errors"]))


if __name__ == "__main__":
    raise SystemExit(main())
