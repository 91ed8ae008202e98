"""Acceptance of a trained pair in stock vLLM, without ddtree_ext and with it: python -m benchmarks.pairs.evaluate PAIR --out
FOLDER

Arms: ar twice (the second in another batch size, as the control of greedy equality), chain:K, tree:B. Every arm answers
the same prompts at every temperature. An engine is a process of its own, all of them at once on one card: ar and its control
share one, each chain has one, and trees of several budgets share one, request by request. Beside them the offline pass
(trace.py) over what ar wrote, whose traces simulate.py reads. Writes FOLDER/results.json after every engine, so that a cut run
keeps what it has, and a second call asks again only what is missing; prints short tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairs import acceptance, rehearse, store, tables, trace, write_text
from benchmarks.pairs.engine import WIDTH, Answer, Ask, Turn, answered
from benchmarks.pairs.recipes import RECIPES, Recipe

AT_A_TIME = {"cuda": 8, "cpu": 1}
TREE_ENGINES = {"cuda": 2, "cpu": 1}
"""Engines that verify trees: a smaller budget is asked of the engine of a larger one, request by request: it is the first nodes of
the same tree.
"""
SOON, AGAIN = 20.0, 120.0
"""Seconds below which no engine is begun, and none begun again."""
PARTS = ("target/source.json", "drafter/trained.json")
TRACED = {"cuda": 80, "cpu": 2}
"""Texts of each temperature that the offline pass looks at."""
CONTROL = "ar again"
TRACES, LARGEST = "traces.npz", 15 << 20
"""Where simulate.py finds them, and bytes at most."""


@dataclass(frozen=True)
class Plan:
    """What every arm is asked: one group for each temperature and set, in the order of `groups`; and the engines that ask it, in
    the order in which they begin.
    """

    groups: tuple[tuple[float, str], ...]
    asked: list[list[list[int]]]
    engines: tuple[Ask, ...]

    @property
    def arms(self) -> list[str]:
        return [turn.arm for ask in self.engines for turn in ask.turns]


def plan(pair: Path, recipe: Recipe, device: str) -> Plan:
    _, evaluation, tokenizer = write_text.prompts(pair, recipe)
    ids = write_text.ids_of(tokenizer, recipe, evaluation)
    kinds = list(dict.fromkeys(prompt.kind for prompt in evaluation))
    groups = [(heat, kind) for heat in recipe.heats for kind in kinds]
    asked = [[row for row, prompt in zip(ids, evaluation, strict=True) if prompt.kind == kind] for _, kind in groups]
    stamp = "".join((pair / part).read_text() for part in PARTS if (pair / part).is_file())

    def engine(arm: str, *turns: Turn) -> Ask:
        return Ask(
            arm, str(pair), device, asked, [heat for heat, _ in groups], recipe.new, recipe.batch, list(turns),
            recipe.max_model_len, stamp=stamp, eager=rehearse.eager(pair, arm),
        )  # fmt: skip

    every, greedy = list(range(len(groups))), [i for i, (heat, _) in enumerate(groups) if heat == 0]
    plain = engine("ar", Turn("ar", recipe.batch, every), Turn(CONTROL, max(1, recipe.batch // 4), greedy))
    chains = [engine(f"chain:{k}", Turn(f"chain:{k}", recipe.batch, every)) for k in reversed(recipe.chains)]
    budgets = sorted(recipe.trees, reverse=True)
    trees = [
        engine(f"tree:{max(WIDTH, share[0])}", *(Turn(f"tree:{nodes}", recipe.batch, every, nodes) for nodes in share))
        for share in (budgets[i :: TREE_ENGINES[device]] for i in range(TREE_ENGINES[device])) if share
    ]  # fmt: skip
    return Plan(tuple(groups), asked, (plain, *trees, *chains))


Answers = tuple[dict[str, Answer], dict[str, str]]
"""By arm: its answer, or why there is none."""


def answers(made: Plan, device: str, folder: Path, deadline: float) -> Iterator[Answers]:
    """Of each engine as it ends, all before `deadline` (monotonic)."""

    def one(ask: Ask) -> Answers:
        place, left = folder / ask.arm.replace(":", "-"), deadline - time.monotonic()
        if left < SOON:
            return {}, {turn.arm: "left out: no time" for turn in ask.turns}
        found, errors = answered(ask, place, left)
        if not errors or device == "cpu" or deadline - time.monotonic() < AGAIN:
            return found, errors
        print(f"{ask.arm}: {next(iter(errors.values()))[-600:]}; once more", flush=True)
        again = ask if found else replace(ask, eager=False)  # with CUDA graphs, should it be eager execution that fails
        return answered(again, place, deadline - time.monotonic())

    with ThreadPoolExecutor(AT_A_TIME[device]) as pool:
        for future in as_completed([pool.submit(one, ask) for ask in made.engines]):
            yield future.result()


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
            if not gains:  # the control answers greedy prompts alone
                continue
            counted = acceptance.counts(gains)
            groups = [i for i, (h, k) in enumerate(made.groups) if h == heat and kind in (None, k)]
            cell = {
                "acceptance": acceptance.acceptance(counted).rounded(),
                "tokens": int(counted[:, 0].sum()),
                "steps": int(counted[:, 1].sum()),
                "accepted_by_depth": acceptance.by_depth(gains, WIDTH),
            }
            if kind:
                cell["counts"] = counted.astype(int).tolist()
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
            counted = {
                arm: acceptance.counts(rows_of(made, answer, heat, kind))
                for arm, answer in got.items()
                if arm.startswith(("chain:", "tree:"))
            }
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
        picked = [(i, r) for i, (h, _) in enumerate(made.groups) if h == heat for r in range(len(made.asked[i]))]
        step = max(1, len(picked) // TRACED[device]) if heat else 1
        picked = picked[::step]
        rows = tuple(made.asked[i][r] + ar.tokens[i][r] for i, r in picked)
        prompts = tuple(len(made.asked[i][r]) for i, r in picked)
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
    """All arms, and beside them the offline pass; the results, which are written as they come."""
    deadline = time.monotonic() + limit
    made = plan(pair, recipe, device)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"pair": pair.name, "groups": len(made.groups), "arms": {}, "errors": {}, "seconds": {}}
    for part in PARTS:
        if (pair / part).is_file():
            results[part.split("/")[0]] = json.loads((pair / part).read_text())
    got: dict[str, Answer] = {}
    with ThreadPoolExecutor(1) as aside:  # beside the engines: they are what takes long
        tracing: Future[Any] | None = None
        for found, errors in answers(made, device, pair / "engines", deadline - min(60.0, limit / 6)):
            results["errors"] |= {arm: error[-3000:] for arm, error in errors.items()}
            for arm, error in errors.items():
                print(f"{arm}: {error[-600:]}", flush=True)
            got |= found
            for arm, answer in found.items():
                results["arms"][arm] = summary(made, answer)
                results["versions"], results["seconds"][arm] = answer.versions, answer.seconds
                print(f"{arm}: {answer.seconds:.0f} s, at {time.monotonic() - (deadline - limit):.0f} s", flush=True)
            if "ar" in found:
                tracing = aside.submit(offline, made, got["ar"], pair, recipe, device, out)
            _write(out, results | {"ratios": ratios(made, got)})
        results["ratios"] = ratios(made, got)
        gaps: dict[tuple[int, int], Any] = {}
        if tracing is not None:
            try:
                results["offline"], gaps = tracing.result()
            except Exception as error:  # out of memory, say: the engines' numbers are worth keeping without it
                results["errors"]["offline"] = f"{type(error).__name__}: {error}"[-1500:]
    results["equality"] = equality(made, got, gaps)
    results["arms"] = {arm: results["arms"][arm] for arm in made.arms if arm in got}
    _write(out, results)
    print(tables.all_tables(results), flush=True)
    return results


def _write(out: Path, results: dict[str, Any]) -> None:
    fresh = out / "results.new"
    fresh.write_text(json.dumps(results) + "\n")
    fresh.replace(out / "results.json")


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
