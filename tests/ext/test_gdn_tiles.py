"""Tiles decide how long the Gated DeltaNet kernels take, not what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gdn_batch import chain, random_batch, random_layer, random_parents, tree, verify

from ddtree_ext.core import gdn_reference as reference
from ddtree_ext.kernels.gdn_commit import CommitTable, GdnLayer
from ddtree_ext.kernels.gdn_stash import GdnShape, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHAPE = GdnShape(2, 6, 64, 48)
NARROW = GdnTiles(
    solve_k=16, solve_warps=4, apply_k=64, apply_v=16, apply_warps=8, commit_heads=1, commit_v=8, commit_warps=8
)
WIDE = GdnTiles(
    solve_k=64, solve_warps=8, apply_k=16, apply_v=64, apply_warps=4, commit_heads=4, commit_v=16, commit_warps=4
)
SWEPT = {
    "a GPU's": GdnTiles.of(GPU, SHAPE, 16),
    "a GPU's for many rows": GdnTiles.of(GPU, SHAPE, 64),
    "narrow": NARROW,
    "wide": WIDE,
    "early": replace(WIDE, solve_early=1, apply_early=1, apply_stages=5, commit_rows=2, commit_vector=4),
    "backward": replace(WIDE, apply_halved=1, apply_stream=1, commit_backward=1, commit_vector=4, commit_stream=1),
    "a K-head's V-heads together": replace(WIDE, solve_group=1, solve_warps=4),
    "too narrow to be early": replace(NARROW, solve_early=1, solve_group=1, commit_rows=4, commit_backward=1),
}


@pytest.mark.parametrize("tiles", SWEPT.values(), ids=SWEPT)
def test_of_any_kind_give_the_same_outputs_and_commit(rng: torch.Generator, tiles: GdnTiles) -> None:
    layer = random_layer(rng, SHAPE)
    batch = random_batch(rng, SHAPE, [tree(3, random_parents(rng, 19)), tree(1, chain(5), dead=2)], torch.bfloat16)
    plain = verify(layer.copy(), batch, out_dtype=torch.float32)
    tiled = verify(layer.copy(), batch, out_dtype=torch.float32, conv_outputs=plain.conv, tiles=tiles)
    torch.testing.assert_close(tiled.out, plain.out, rtol=1e-5, atol=1e-5, equal_nan=True)
    for kept in ("u", "k", "decay"):
        torch.testing.assert_close(getattr(tiled.stash, kept), getattr(plain.stash, kept), rtol=1e-5, atol=1e-5)
    plain.commit([[0, 1, 2], [0, 1]])
    replace(plain, layer=tiled.layer).commit([[0, 1, 2], [0, 1]], tiles=tiles)
    torch.testing.assert_close(tiled.layer.state, plain.layer.state, rtol=1e-6, atol=1e-6)
    assert torch.equal(tiled.layer.window, plain.layer.window)


@pytest.mark.parametrize("tiles", SWEPT.values(), ids=SWEPT)
def test_of_any_kind_agree_with_the_rule_in_float64(rng: torch.Generator, tiles: GdnTiles) -> None:
    """Keys that resemble each other, and gates that forget nothing, or all: where a sum could cancel."""
    layer = random_layer(rng, SHAPE, dtype=torch.float32)
    batch = random_batch(rng, SHAPE, [tree(6, chain(16)), tree(2, random_parents(rng, 11))], torch.float32)
    batch.a[:16].fill_(-20.0)
    batch.a[7] = 3000.0
    batch.b.fill_(6.0)
    alike = torch.ones(len(batch.x), SHAPE.conv_dim) + 0.1 * batch.x
    step = verify(layer, batch, conv_outputs=alike, tiles=tiles)
    paths = [[*range(16)], reference.root_path(batch.requests[1].parents or [], 10)]
    exact = [step.exact(number) for number in range(2)]
    step.commit(paths, tiles=tiles)
    for number, request in enumerate(batch.requests):
        rows = slice(0, request.live)
        torch.testing.assert_close(step.out[batch.live(number)].double(), exact[number].out, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(step.stash.u[number, rows].double(), exact[number].u, rtol=1e-5, atol=1e-5)
        state = exact[number].states[paths[number][-1]]
        torch.testing.assert_close(step.layer.state[request.slot].double(), state, rtol=1e-5, atol=1e-5)


def test_caches_that_begin_anywhere_are_committed_one_number_at_a_time(rng: torch.Generator) -> None:
    layer = random_layer(rng, SHAPE)
    odd = torch.empty(layer.state.numel() + 1)[1:].view(layer.state.shape).copy_(layer.state)
    stash = GdnStash.allocate(1, 4, SHAPE, torch.bfloat16, "cpu")
    aligned, off = (CommitTable.of([GdnLayer(state, layer.window, stash)], 4).align for state in (layer.state, odd))
    assert (aligned, off) == (16, 4)


class TestOfADevice:
    def test_the_interpreter_takes_everything_at_once(self) -> None:
        tiles = GdnTiles.of(CPU, SHAPE, 16)
        assert (tiles.solve_k, tiles.apply_k, tiles.apply_v) == (64, 64, 64)
        assert (tiles.commit_heads, tiles.commit_v) == (8, 64)

    def test_a_gpu_takes_no_more_than_the_heads_hold(self) -> None:
        large, small = (GdnTiles.of(GPU, GdnShape(2, 4, size, size), 16) for size in (128, 8))
        assert (large.apply_k, large.apply_v, large.commit_heads, large.commit_v) == (32, 64, 1, 16)
        assert (small.apply_k, small.apply_v, small.commit_v) == (16, 16, 8)

    def test_a_stash_knows_its_layers_shape(self) -> None:
        assert GdnStash.allocate(2, 5, SHAPE, torch.bfloat16, "cpu").shape == SHAPE
