"""gather_rows brings the accepted rows to the front of their requests, in several tensors at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafts import int32, starts
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.kernels.gather import RowPointers, gather_rows

ROWS = 10


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([1, 17, 64, 1500, 3000]),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_accepted_rows_come_first_in_every_layer(dtype: torch.dtype, width: int, layers: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    requests = int(rng.integers(1, 5))
    lengths = rng.integers(1, ROWS + 1, requests).tolist()
    is_tree = (rng.random(requests) < 0.8).tolist()
    paths = []
    for n in lengths:
        chosen = rng.choice(np.arange(1, n), int(rng.integers(0, n)), replace=False)
        paths.append([0, *sorted(chosen.tolist())])
    path = int32([row for p in paths for row in p + [-1] * (ROWS - len(p))]).view(requests, ROWS)
    # Rows of wider tensors: the row stride is not the width.
    states = [torch.randn(sum(lengths) + 2, width + 8).to(dtype)[:, :width] for _ in range(layers)]
    expected, at = [state.clone() for state in states], 0
    for r, n in enumerate(lengths):
        for i, row in enumerate(paths[r] if is_tree[r] else []):
            for new, old in zip(expected, states, strict=True):
                new[at + i] = old[at + row]
        at += n
    sampled = int32([len(p) for p in paths])
    gather_rows(states, RowPointers.of(states), starts(lengths), path, sampled, int32(is_tree))
    for state, truth in zip(states, expected, strict=True):
        assert torch.equal(state, truth)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([torch.zeros(2, 4), torch.zeros(2, 5)], "one form"),
        ([torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.bfloat16)], "one form"),
        ([torch.zeros(2, 4, dtype=torch.int64)], "16 or 32 bits"),
        ([torch.zeros(2, 8)[:, ::2]], "contiguous"),
    ],
)
def test_states_that_no_one_launch_can_move_are_refused(states: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowPointers.of(states)
