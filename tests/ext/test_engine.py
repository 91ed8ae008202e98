"""Trees inside vLLM, on trained pairs: dense, Gated-DeltaNet hybrid, hybrid with heads of 128.

Every reference runs with the extension absent, and every claim about trees also claims that, for its own requests, trees were
built and nodes beside the spine accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate, takewhile

import pytest
import torch

from tests.ext.engine import arms
from tests.ext.engine.job import DEVICE, Answer
from tests.ext.engine.near_ties import spines_may_part, tree_may_stop

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]
PAIRS = ("dense", "hybrid", "hybrid128")


@pytest.fixture(scope="module", autouse=True)
def engines(request: pytest.FixtureRequest) -> None:
    """Begins the arms of every pair that is to be tested, so that no processor waits while a test looks at its answers."""
    ours = [item for item in request.session.items if item.module is request.module]
    for pair in dict.fromkeys(item.callspec.params["pair"] for item in ours if hasattr(item, "callspec")):
        arms.started(pair)


def steps_by_base(gains: list[int]) -> dict[int, int]:
    """Tokens gained in a decode step, by the number of tokens before it; the prompt's own step is left out."""
    bases = accumulate(gains[:-1])
    return dict(zip(bases, gains[1:], strict=True))


def assert_trees_worked(answer: Answer, groups: Iterable[int]) -> None:
    """In every one of these groups trees were built, larger than a spine, and a node beside it was accepted in some."""
    groups = list(groups)
    for group in groups:
        trees = answer.counted("trees", [group])
        assert trees > 0, group
        assert answer.counted("nodes", [group]) > arms.WIDTH * trees, group
    assert answer.counted("accepted_off_spine", groups) > 0


@pytest.mark.parametrize("pair", PAIRS)
def test_greedy_trees_equal_plain_greedy_alone(pair: str) -> None:
    assert arms.tree(pair).tokens[: arms.BATCHED] == arms.plain(pair).tokens[: arms.BATCHED]
    assert_trees_worked(arms.tree(pair), arms.ALONE)


@pytest.mark.parametrize("pair", PAIRS)
def test_greedy_trees_equal_plain_greedy_in_a_changing_batch(pair: str) -> None:
    assert arms.tree(pair).tokens[arms.BATCHED] == arms.plain(pair).tokens[arms.BATCHED]
    assert_trees_worked(arms.tree(pair), [arms.BATCHED])


def test_the_budget_may_follow_the_size_of_the_batch() -> None:
    """The text stays; trees are as large as the tier of the step they were grown in allows, none where it allows nothing."""
    tiers = arms.started_tiers().result()
    assert tiers.tokens[0] == arms.plain("dense").tokens[arms.BATCHED]
    trees, nodes = tiers.metrics["vllm:ddtree_trees_total"], tiers.metrics["vllm:ddtree_nodes_total"]
    assert 3 * trees < nodes < 0.9 * 20 * trees
    drafting = [len(gains) for index, gains in enumerate(tiers.gains[0]) if index != 1]
    assert trees < sum(drafting) - 2 * len(drafting), "not every step after a prompt had one"
    assert tiers.metrics["vllm:ddtree_accepted_off_spine_total"] > 0


@pytest.mark.parametrize("pair", PAIRS)
def test_a_request_may_decode_plainly(pair: str) -> None:
    assert set(arms.tree(pair).gains[arms.BATCHED][1]) == {1}
    others = [gain for i, gains in enumerate(arms.tree(pair).gains[arms.BATCHED]) if i != 1 for gain in gains]
    assert max(others) > 2
    assert_trees_worked(arms.tree(pair), [arms.BATCHED])


@pytest.mark.parametrize("pair", PAIRS)
def test_a_choice_that_depends_on_the_tokens_before_it_verifies_the_spine(pair: str) -> None:
    """Bad words, penalties and a grammar give plain decoding's text; no node beside the spine is in a tree."""
    tree, plain = arms.tree(pair), arms.plain(pair)
    assert tree.tokens[arms.READING] == plain.tokens[arms.READING]
    assert re.fullmatch(arms.GRAMMAR, tree.texts[arms.READING][2])
    assert tree.texts[arms.READING][2] != plain.texts[arms.SCORED][0], "the same prompt without a grammar"
    forbidden = plain.tokens[arms.READING][0]
    assert forbidden != plain.tokens[0][0][: len(forbidden)], "the words would not have been said"
    trees = tree.counted("trees", [arms.READING])
    assert 0 < tree.counted("nodes", [arms.READING]) <= arms.WIDTH * trees
    assert tree.counted("accepted", [arms.READING]) > 0
    assert tree.counted("accepted_off_spine", [arms.READING]) == 0


@pytest.mark.parametrize("pair", [pytest.param("dense", marks=pytest.mark.full), "hybrid"])
def test_trees_on_two_ranks_repeat_what_one_rank_says(pair: str) -> None:
    """Greedy and by seeds; every rank grows the same trees, and what they did is counted once."""
    if DEVICE == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("one GPU: two ranks want two")
    split, plain = arms.started_split(pair).result(), arms.plain(pair)
    assert split.tokens == [plain.tokens[group] for group in arms.SPLIT]
    groups = range(len(arms.SPLIT))
    assert_trees_worked(split, groups)
    assert split.counted("trees", groups) == pytest.approx(arms.tree(pair).counted("trees", arms.SPLIT), rel=0.1)


@pytest.mark.parametrize("pair", [pytest.param("dense", marks=pytest.mark.full), "hybrid"])
def test_prompts_that_are_read_in_chunks_beside_trees_are_continued_as_plain_ones(pair: str) -> None:
    trees, plain = (answer.result() for answer in arms.started_chunked(pair))
    assert trees.tokens[0] == plain.tokens[0]
    assert_trees_worked(trees, [0])


@pytest.mark.full
def test_a_request_that_is_preempted_repeats_its_text() -> None:
    """It loses its state in the middle of its answer, and reads prompt and answer anew as a prompt."""
    trees, plain = (answer.result() for answer in arms.started_cramped())
    assert trees.counters[0]["vllm:num_preemptions_total"] > 0
    assert trees.tokens[0] == plain.tokens[0]
    assert_trees_worked(trees, [0])


@pytest.mark.full
def test_an_answer_ends_where_the_models_length_does() -> None:
    """Not a token beyond it is emitted, though the tree of the last step would reach further."""
    trees, plain = (answer.result() for answer in arms.started_cramped())
    lengths = [len(ask.prompt) + len(tokens) for ask, tokens in zip(arms.cramped(), trees.tokens[0], strict=True)]
    assert lengths == [arms.MODEL_LEN] * 2
    assert trees.tokens[0] == plain.tokens[0]
    assert_trees_worked(trees, [0])


@pytest.mark.parametrize("pair", PAIRS)
def test_a_spine_accepts_step_by_step_what_stock_accepts(pair: str) -> None:
    """In float32 the same number at every step. In bfloat16, from every state both arms reach, but that a drafter's near tie
    may part them: other attention under the target, and on a hybrid stock's CPU op that gates in bfloat16.
    """
    spine, chain = arms.spine(pair), arms.chain(pair)
    assert spine.tokens == chain.tokens
    if arms.exact(pair):
        assert spine.gains == chain.gains
    compared = excuses = 0
    for index, prompt in enumerate(arms.SINGLES):
        ours, stock = steps_by_base(spine.gains[index][0]), steps_by_base(chain.gains[index][0])
        for base in sorted(set(ours) & set(stock)):
            compared += 1
            if ours[base] != stock[base]:
                excuses += 1
                slot = min(ours[base], stock[base]) - 1
                assert spines_may_part(pair, prompt, chain.tokens[index][0], base, slot), (index, base)
    assert excuses <= 0.1 * compared
    steps = [sum(len(gains[0]) for gains in answer.gains) for answer in (spine, chain)]
    assert compared >= 0.7 * steps[1]
    assert steps[0] == pytest.approx(steps[1], rel=0.06)
    assert all(spine.counted("trees", [group]) > 0 for group in arms.ALONE)
    assert spine.counted("accepted", arms.ALONE) > 0
    assert spine.counted("accepted_off_spine", arms.ALONE) == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_a_tree_accepts_never_less_than_the_chain_and_more_in_total(pair: str) -> None:
    """From the same state, a step gains at least the chain's tokens; a request's last step is cut by max_tokens.

    In bfloat16, but for a drafter's near tie.
    """
    compared = more = excuses = 0
    for index, prompt in enumerate(arms.SINGLES):
        chain_steps = steps_by_base(arms.chain(pair).gains[index][0])
        tree_steps = steps_by_base(arms.tree(pair).gains[index][0])
        for base in sorted(set(chain_steps) & set(tree_steps)):
            tree, chain = tree_steps[base], chain_steps[base]
            if tree < chain:
                excuses += 1
                assert not arms.exact(pair), (index, base)
                assert tree_may_stop(pair, prompt, arms.chain(pair).tokens[index][0], base, tree - 1), (index, base)
            compared, more = compared + 1, more + (tree > chain)
    assert compared > 20
    assert more > 3
    assert excuses <= 0.1 * compared
    both = arms.chain(pair), arms.tree(pair)
    total = [sum(len(gains[0]) for gains in answer.gains[: arms.BATCHED]) for answer in both]
    assert total[1] < total[0], "the tree needed as many steps as the chain"
    assert_trees_worked(arms.tree(pair), arms.ALONE)


@pytest.mark.parametrize("pair", PAIRS)
def test_seeded_sampling_repeats_plain_decoding(pair: str) -> None:
    """Draw by draw: the noise of a position is the same. Where two tokens' scores nearly tie, bf16's noise may decide."""
    ours, plain = arms.tree(pair).tokens[arms.SEEDED], arms.plain(pair).tokens[arms.SEEDED]
    if arms.exact(pair):
        assert ours == plain
    agreed = [
        sum(1 for _ in takewhile(lambda ab: ab[0] == ab[1], zip(a, b, strict=True)))
        for a, b in zip(ours, plain, strict=True)
    ]
    assert sum(count == len(tokens) for count, tokens in zip(agreed, plain, strict=True)) >= 2, agreed
    assert min(agreed) >= 8, agreed
    assert_trees_worked(arms.tree(pair), [arms.SEEDED])


@pytest.mark.parametrize("pair", PAIRS)
def test_scores_are_those_of_the_accepted_path(pair: str) -> None:
    """Each token's logprob is the plain run's, within the noise of its precision."""
    ours, plain = (answer(pair).logprobs[arms.SCORED][0] for answer in (arms.tree, arms.plain))
    assert len(ours) == len(plain) == 24
    assert ours == pytest.approx(plain, abs=2e-3 if arms.exact(pair) else 0.15)
    assert_trees_worked(arms.tree(pair), [arms.SCORED])


@pytest.mark.parametrize("pair", PAIRS)
def test_counters_agree_with_what_was_emitted(pair: str) -> None:
    """Of all groups together; the groups' own add up to them."""
    metrics, tokens = arms.tree(pair).metrics, 0
    everywhere = range(len(arms.tree(pair).gains))
    for name in ("trees", "nodes", "accepted", "accepted_off_spine"):
        assert arms.tree(pair).counted(name, everywhere) == metrics[f"vllm:ddtree_{name}_total"] > 0
    for group in arms.tree(pair).gains:
        for gains in group:
            tokens += sum(gains) - len(gains)  # every step of a request emits one token that is not a node
    assert metrics["vllm:ddtree_accepted_per_step_count"] == metrics["vllm:ddtree_trees_total"]
    assert metrics["vllm:ddtree_accepted_per_step_sum"] == metrics["vllm:ddtree_accepted_total"]
    assert metrics["vllm:ddtree_accepted_total"] >= tokens  # max_tokens cuts what a last step accepted
    assert metrics["vllm:ddtree_accepted_total"] == sum(
        metrics[f"vllm:ddtree_accepted_per_depth_total[{depth}]"] for depth in range(1, arms.WIDTH + 1)
    )
    by_node = [metrics[f"vllm:ddtree_accepted_per_node_total[{node}]"] for node in range(1, 64)]
    assert sum(by_node) == metrics["vllm:ddtree_accepted_total"]
    assert sum(by_node[arms.WIDTH :]) == metrics["vllm:ddtree_accepted_off_spine_total"], (
        "the spine is in the tree first"
    )
