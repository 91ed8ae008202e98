"""benchmarks.gpu.forced: the walk that it draws accepts as many nodes as was asked, a third of them off the spine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.gpu.forced import Chances, chances_for, draw, law, outcome
from ddtree_ext.core.tree import grow

WIDTH, RANKS = 15, 16


def parents_of(budget: int, ranks: int = RANKS) -> tuple[int, ...]:
    logprobs = np.tile(law(ranks), (WIDTH, 1))
    return grow(logprobs, np.arange(logprobs.size, dtype=np.int64).reshape(logprobs.shape), budget).parents


class TestChances:
    def test_a_chain_that_always_goes_on_is_accepted_whole(self) -> None:
        assert outcome(parents_of(15, 1), Chances(0.0, 1.0)) == (15.0, 0.0)

    def test_a_walk_that_always_stops_accepts_nothing(self) -> None:
        assert outcome(parents_of(31), Chances(1.0, 1.0)) == (0.0, 0.0)

    @pytest.mark.parametrize("budget", [31, 63])
    def test_those_of_a_tree_meet_the_length_and_a_third_off_the_spine(self, budget: int) -> None:
        parents = parents_of(budget)
        accepted, off = outcome(parents, chances_for(parents, 5.0))
        assert accepted == pytest.approx(5.0, abs=0.25)
        assert off == pytest.approx(1 / 3, abs=0.02)

    @pytest.mark.parametrize("ranks", [1, 2, RANKS])
    def test_the_law_is_one_of_descending_chances_below_one(self, ranks: int) -> None:
        chances = np.exp(law(ranks))
        assert len(chances) == ranks
        assert chances.sum() <= 1 + 1e-6
        assert (np.diff(chances) < 0).all()


class TestDraw:
    def test_walks_in_a_batch_accept_what_the_chances_promise(self) -> None:
        torch.manual_seed(1)
        parents = parents_of(31)
        rows, requests = len(parents), 4000
        chances = chances_for(parents, 5.0)
        local = torch.arange(rows).repeat(requests)
        starts = torch.arange(requests).repeat_interleave(rows) * rows
        where = draw(torch.tensor(parents).repeat(requests), local, starts, chances).view(requests, rows)
        reached = torch.zeros(requests, rows, dtype=torch.bool)
        reached[:, 0] = True
        for row in range(1, rows):
            above = torch.arange(requests) * rows + parents[row]
            reached[:, row] = reached[:, parents[row]] & (where[:, row] == above)
        counts = reached[:, 1:].sum(1).double()
        promised, off = outcome(parents, chances)
        assert counts.mean().item() == pytest.approx(promised, abs=5 * counts.std().item() / requests**0.5)
        spine = torch.tensor([parent == row - 1 and row <= WIDTH for row, parent in enumerate(parents)])
        assert (reached[:, 1:] & ~spine[1:]).sum().item() / counts.sum().item() == pytest.approx(off, abs=0.03)

    def test_a_row_goes_on_to_one_child_at_most(self) -> None:
        parents = parents_of(31)
        for _ in range(50):
            local, starts = torch.arange(len(parents)), torch.zeros(len(parents), dtype=torch.int64)
            where = draw(torch.tensor(parents), local, starts, Chances(0.0, 1.0))
            onwards = where[where < len(parents)].tolist()
            assert len(onwards) == len(set(onwards)) == len(set(parents) - {-1})
