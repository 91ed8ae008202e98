"""The roofline counts what the kernels really have: the bytes of their tensors, and every product the interpreter computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import DEVICE
from gdn_batch import chain, random_batch, random_layer, tree, verify

from benchmarks.gpu import roofline
from benchmarks.gpu.dims import QWEN36_27B, TINY
from benchmarks.gpu.roofline import A6000, H200, Card, Step, Work, works
from ddtree_ext.kernels.gdn_stash import GdnScratch, GdnShape, GdnStash

ONE_LAYER = replace(TINY, layers=1, gdn_k_heads=2, gdn_v_heads=6, gdn_dim=32)
SHAPE = GdnShape(2, 6, 32, 32)
STATE = 6 * 32 * 32 * 4


def work(step: Step, kernel: str) -> Work:
    return next(found for found in works(ONE_LAYER, step) if found.kernel == kernel)


def size(*tensors: torch.Tensor) -> int:
    return sum(t.nbytes for t in tensors)


@pytest.mark.parametrize("batch", [1, 3])
class TestBytesAreTheTensors:
    """A tree of 15 nodes has 16 rows: its tensors have no padding, and every one is read or written whole."""

    def tensors(self, batch: int) -> tuple[GdnStash, GdnScratch, torch.Tensor]:
        """Stash, scratch, and the convolution's output in bfloat16."""
        stash = GdnStash.allocate(batch, 16, SHAPE, torch.bfloat16, "cpu")
        scratch = GdnScratch.allocate(batch, 16, SHAPE, "cpu")
        return stash, scratch, torch.empty(batch * 16, SHAPE.conv_dim, dtype=torch.bfloat16, device="cpu")

    def test_convolution(self, batch: int) -> None:
        stash, _, conv = self.tensors(batch)
        windows, weight = batch * 3 * SHAPE.conv_dim * 2, 4 * SHAPE.conv_dim * 2
        assert work(Step(batch, 15, 0), "conv_tree").bytes == size(conv, stash.x, conv) + windows + weight

    def test_solve(self, batch: int) -> None:
        stash, scratch, conv = self.tensors(batch)
        q_and_k, gates = conv[:, : 2 * 2 * 32], batch * 16 * 2 * 6 * 2
        written = size(scratch.q, stash.k, scratch.solve, scratch.mix, scratch.beta, scratch.fade, stash.decay)
        assert work(Step(batch, 15, 0), "solve_tree").bytes == q_and_k.numel() * 2 + gates + written

    def test_apply(self, batch: int) -> None:
        stash, scratch, conv = self.tensors(batch)
        v = conv[:, 2 * 2 * 32 :].numel() * 2
        read = size(scratch.q, stash.k, scratch.solve, scratch.mix, scratch.beta, scratch.fade) + v + batch * STATE
        assert work(Step(batch, 15, 0), "apply_tree").bytes == read + size(stash.u) + v

    def test_norm(self, batch: int) -> None:
        _, _, conv = self.tensors(batch)
        read_gated_written = 3 * conv[:, 2 * 2 * 32 :].numel() * 2
        assert work(Step(batch, 15, 0), "gated_norm").bytes == read_gated_written + 32 * 2

    def test_commit_of_a_whole_chain(self, batch: int) -> None:
        stash, _, _ = self.tensors(batch)
        windows = 3 * batch * 3 * SHAPE.conv_dim * 2
        moved = 2 * batch * STATE + size(stash.k, stash.u, stash.decay) + windows
        assert work(Step(batch, 15, 0, path=16), "commit_tree").bytes == moved


@contextmanager
def counted() -> Iterator[list[int]]:
    """FLOPs of every tl.dot that the interpreter computes in the meantime."""
    from triton.runtime import interpreter

    flops: list[int] = []
    original = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        flops.append(2 * int(np.prod(a.data.shape)) * b.data.shape[-1])
        return original(self, a, b, *rest)

    with mock.patch.object(interpreter.InterpreterBuilder, "create_dot", create_dot):
        yield flops


@pytest.mark.skipif(DEVICE != "cpu", reason="counts in Triton's interpreter")
@pytest.mark.parametrize("rows", [9, 32, 64])
def test_flops_are_the_products_that_the_kernels_compute(rng: torch.Generator, rows: int) -> None:
    """Products of float32 are three on a GPU."""
    layer = random_layer(rng, SHAPE)
    batch = random_batch(rng, SHAPE, [tree(1, chain(rows))], torch.bfloat16)
    with counted() as flops:
        verify(layer, batch)
    kernels = [work(Step(1, rows - 1, 0), kernel) for kernel in ("solve_tree", "apply_tree")]
    assert sum(flops) == sum(kernel.bf16 + kernel.tf32 / 3 for kernel in kernels)


class TestStep:
    def test_splits_are_those_of_the_scratch(self) -> None:
        found = [roofline.splits(QWEN36_27B, Step(batch, 31, 0)) for batch in (1, 8, 64, 100)]
        assert found == [11, 2, 1, 1]

    def test_two_ranks_halve_what_is_sharded(self) -> None:
        for kernel in ("conv_tree", "solve_tree", "apply_tree", "commit_tree", "attention, splits", "compact_kv"):
            whole, half = (
                next(w for w in works(QWEN36_27B, Step(2, 31, 4096, ranks=ranks)) if w.kernel == kernel)
                for ranks in (1, 2)
            )
            assert half.bytes == pytest.approx(whole.bytes / 2)
            assert half.launches == whole.launches

    def test_a_verification_reads_each_state_once(self) -> None:
        """151 MB a request at the 27B's widths; the commit reads and writes it once."""
        state = 48 * 48 * 128 * 128 * 4
        by_kernel = {w.kernel: w for w in works(QWEN36_27B, Step(1, 15, 4096))}
        assert state < by_kernel["apply_tree"].bytes < 1.5 * state
        assert 2 * state < by_kernel["commit_tree"].bytes < 2.2 * state

    def test_the_top_k_reads_a_ranks_shard_of_the_vocabulary_once(self) -> None:
        """And writes, per 4096 logits, 16 keys of 64 bits, a maximum and a sum; ranks exchange as much of a row, and no logits."""
        for ranks, chunks in ((1, 61), (2, 31)):
            by_kernel = {w.kernel: w for w in works(QWEN36_27B, Step(8, 15, 0, ranks=ranks))}
            found = 8 * 15 * chunks * (16 * 8 + 4 + 4)
            assert by_kernel["topk, chunks"].bytes == 8 * 15 * 248320 / ranks * 2 + found
            assert ("topk, narrow" in by_kernel) == (ranks > 1)
            merged = found if ranks == 1 else 2 * 8 * 15 * (16 * 8 + 4 + 4)
            assert by_kernel["topk, merge"].bytes == merged + 8 * 15 * 16 * 12


class TestTime:
    CARD = Card("slow", memory=10.0, bf16=4.0, tf32=2.0, fp32=1.0)

    def test_is_the_longer_of_moving_and_computing(self) -> None:
        assert Work("k", 1, bytes=50.0, bf16=8.0).seconds(self.CARD) == 5.0
        assert Work("k", 1, bytes=10.0, bf16=8.0, tf32=4.0, fp32=1.0).seconds(self.CARD) == 5.0

    def test_says_what_binds(self) -> None:
        assert Work("k", 1, bytes=50.0, bf16=8.0).bound(self.CARD) == "memory"
        assert Work("k", 1, bytes=10.0, bf16=8.0).bound(self.CARD) == "compute"

    def test_the_table_has_every_kernel_and_the_sum(self) -> None:
        step = Step(8, 31, 4096)
        lines = roofline.table(QWEN36_27B, step, (H200, A6000)).splitlines()
        found = works(QWEN36_27B, step)
        assert [line[:19].strip() for line in lines[1:-1]] == [w.kernel for w in found]
        assert float(lines[-1].split()[-1]) == pytest.approx(sum(w.seconds(A6000) for w in found) * 1e6, abs=0.06)
