"""Tiles decide how long the Gated DeltaNet kernels take, not what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gdn_batch import chain, random_batch, random_layer, random_parents, tree, verify

from ddtree_ext.kernels.gdn_stash import GdnShape, GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHAPE = GdnShape(2, 6, 64, 48)
SWEPT = [
    GdnTiles.of(GPU, SHAPE, 16),
    GdnTiles.of(GPU, SHAPE, 64),
    GdnTiles(
        solve_k=16, solve_warps=4, apply_k=64, apply_v=16, apply_warps=8, commit_heads=1, commit_v=8, commit_warps=8
    ),
    GdnTiles(
        solve_k=64, solve_warps=8, apply_k=16, apply_v=64, apply_warps=4, commit_heads=4, commit_v=16, commit_warps=4
    ),
]


@pytest.mark.parametrize("tiles", SWEPT, ids=["a GPU's", "a GPU's for many rows", "narrow", "wide"])
def test_of_any_size_give_the_same_outputs_and_commit(rng: torch.Generator, tiles: GdnTiles) -> None:
    layer = random_layer(rng, SHAPE)
    batch = random_batch(rng, SHAPE, [tree(3, random_parents(rng, 19)), tree(1, chain(5), dead=2)], torch.bfloat16)
    plain = verify(layer.copy(), batch, out_dtype=torch.float32)
    tiled = verify(layer.copy(), batch, out_dtype=torch.float32, conv_outputs=plain.conv, tiles=tiles)
    torch.testing.assert_close(tiled.out, plain.out, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(tiled.stash.u, plain.stash.u, rtol=1e-5, atol=1e-5)
    plain.commit([[0, 1, 2], [0, 1]])
    replace(plain, layer=tiled.layer).commit([[0, 1, 2], [0, 1]], tiles=tiles)
    torch.testing.assert_close(tiled.layer.state, plain.layer.state, rtol=1e-6, atol=1e-6)
    assert torch.equal(tiled.layer.window, plain.layer.window)


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
