"""state_slots reads the first block of every request in the tables of many groups; BlockTables knows whether they moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafts import POISON, int32
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.kernels.block_tables import BlockTables, state_slots


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_slots_of_the_batch_and_none_beyond(groups: int, requests: int, beyond: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [int32(rng.integers(1, 10**6, (requests + 2, 3 + group)).tolist()) for group in range(groups)]
    wanted = rng.permutation(groups)[: max(1, groups - 1)].tolist()
    slots = int32([[POISON] * (requests + beyond)] * len(wanted)).view(len(wanted), requests + beyond)
    state_slots(BlockTables.of(tables), int32(wanted), requests, slots)
    for row, group in enumerate(wanted):
        assert slots[row].tolist() == [*tables[group][:requests, 0].tolist(), *([0] * beyond)]


def test_the_same_tables_are_known_by_their_place_however_many_rows_are_seen() -> None:
    memory = [torch.zeros(4, 3, dtype=torch.int32) for _ in range(2)]
    known = BlockTables.of([table[:2] for table in memory])
    assert known.are([table[:3] for table in memory])
    assert not known.are([memory[0], memory[1].clone()])
    assert not known.are(memory[:1])
    assert BlockTables.of(()).are(())


@pytest.mark.parametrize("table", [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int32).t()])
def test_what_is_no_table_of_int32_rows_is_refused(table: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="block table 1 must be int32"):
        BlockTables.of([torch.zeros(2, 3, dtype=torch.int32), table])
