"""Families: metadata is built once for groups that differ in their block tables alone, and by itself for every other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ddtree_ext.engine.families import Families


class Changes:
    """A builder that knows how to change a block table."""

    supports_update_block_table = True

    def update_block_table(self, metadata: Any, blk_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        return (metadata, int(blk_table[0, 0]), int(slot_mapping[0]))


class Other(Changes):
    """Another kind of builder."""


class Rebuilds:
    supports_update_block_table = False


@dataclass
class Group:
    layer_names: list[str]
    kv_cache_spec: str = "a layer's cache"
    builder: Any = field(default_factory=Changes)
    kernel_block_size: int | None = None

    def get_metadata_builder(self, ubatch: int) -> Any:
        assert ubatch == 0
        return self.builder


def test_kin_take_over_what_the_first_of_them_was_built() -> None:
    groups = [[Group(["a", "b"])], [Group(["c"])], [Group(["d", "e"])]]
    families = Families.of(groups)
    assert families.built == [groups[0], [], []]
    metadata = {"a": "first", "b": "first"}
    tables = [torch.full((2, 2), value, dtype=torch.int32) for value in (1, 2, 3)]
    families.complete(metadata, tables, torch.tensor([[10], [20], [30]]))
    assert metadata == {
        "a": "first",
        "b": "first",
        "c": ("first", 2, 20),
        "d": ("first", 3, 30),
        "e": ("first", 3, 30),
    }


def test_what_differs_in_more_than_the_table_is_built_by_itself() -> None:
    groups = [
        [Group(["a"]), Group(["b"], builder=Other())],
        [Group(["c"], kv_cache_spec="another")],
        [Group(["d"], builder=Rebuilds())],
        [Group(["e"], builder=Rebuilds())],
        [Group(["f"], kernel_block_size=16)],
        [],
    ]
    families = Families.of(groups)
    assert families.built == groups
    assert families.kin == ()
