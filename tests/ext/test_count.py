"""count_trees adds up what tensors of the whole batch would give, request by request."""

from __future__ import annotations

import numpy as np
import torch
from drafts import int32
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.kernels.count import count_trees

SUMS, NODES = 3, 64


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.sampled_from([7, 15, 63]), st.integers(1, 16), st.integers(0, 2**32 - 1))
def test_two_steps_of_unequal_requests(requests: int, budget: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    totals = torch.zeros(SUMS + NODES + width + 1, dtype=torch.int64)
    expected = np.zeros(totals.shape[0], dtype=np.int64)
    for _ in range(2):
        lens, sampled, paths = [], [], []
        for _ in range(requests):
            nodes = int(rng.integers(0, budget + 1))
            accepted = sorted(rng.permutation(np.arange(1, nodes + 1))[: int(rng.integers(0, width + 1))].tolist())
            is_tree = rng.random() < 0.8
            lens.append(nodes + 1 if is_tree else 0)
            sampled.append(len(accepted) + 1 if rng.random() < 0.9 else 0)
            paths.append([0, *accepted, *([-1] * (budget - len(accepted)))])
            if is_tree and nodes and sampled[-1]:
                expected[:SUMS] += 1, nodes, sum(row > place for place, row in enumerate(accepted, start=1))
                for row in accepted:
                    expected[SUMS + row] += 1
                expected[SUMS + NODES + len(accepted)] += 1
        count_trees(int32(lens), int32(sampled), int32(paths), totals, SUMS, NODES)
    assert totals.tolist() == expected.tolist()


def test_a_path_longer_than_the_drafter_is_wide_counts_in_the_last_bin() -> None:
    totals = torch.zeros(SUMS + NODES + 3, dtype=torch.int64)
    count_trees(int32([6]), int32([5]), int32([[0, 1, 2, 3, 4, -1]]), totals, SUMS, NODES)
    assert totals[SUMS + NODES :].tolist() == [0, 0, 1]
