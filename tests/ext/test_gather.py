"""gather_rows brings the accepted rows to the front of their requests, in place or into another tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafts import int32, starts
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.kernels.gather import gather_rows

ROWS = 10


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([1, 17, 64, 1500]),
    st.integers(0, 2**32 - 1),
)
def test_accepted_rows_come_first(in_place: bool, dtype: torch.dtype, width: int, seed: int) -> None:
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
    # Rows of a wider tensor: the row stride is not the width.
    source = torch.randn(sum(lengths) + 2, width + 8).to(dtype)[:, :width]
    target = source if in_place else torch.randn(sum(lengths) + 2, width).to(dtype)
    expected, before, at = target.clone(), source.clone(), 0
    for r, n in enumerate(lengths):
        for i, row in enumerate(paths[r] if is_tree[r] else []):
            expected[at + i] = before[at + row]
        at += n
    gather_rows(source, starts(lengths), path, int32([len(p) for p in paths]), int32(is_tree), target)
    assert torch.equal(target, expected)
    assert in_place or torch.equal(source, before)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        gather_rows(torch.zeros(2, 4), starts([2]), int32([0]).view(1, 1), int32([1]), int32([1]), torch.zeros(2, 5))
