"""NAME.tuned.toml: what `tune` found and `serve` reads, when the inventory names it. One file, reviewed like the inventory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from deployer.inventory.load import validated
from deployer.inventory.model import Section
from deployer.inventory.tiers import Table, require_consistent
from deployer.inventory.values import Whole

Kind = Literal["autoregressive", "chain", "tree"]


class Tuned(Section):
    """How to decode, and what that was decided on."""

    format: Literal["ddtree-deploy-tuned/1"] = "ddtree-deploy-tuned/1"
    kind: Kind
    tokens: Whole = Field(ge=0, description="vLLM's num_speculative_tokens: the largest; 0 without drafts")
    table: Table = Field(
        default=(), description="vLLM's num_speculative_tokens_per_batch_size: first and last size, tokens; () is none"
    )
    host: str = Field(description="the inventory's name")
    when: str = Field(description="UTC, of the last measurement")
    release: str
    drafter: str = Field(description="fingerprint, as a bench's file has it")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.kind == "autoregressive") != (self.tokens == 0):
            raise ValueError("tokens is 0 if kind is autoregressive, and only then")
        require_consistent(self.table, self.tokens, "tokens")
        return self


def read(path: Path) -> Tuned:
    """Raises UsageError that names what is wrong with it."""
    return validated(Tuned, path)


def text(tuned: Tuned, remarks: tuple[str, ...]) -> str:
    """The file. `remarks` are the numbers behind it, as comments for who reviews it."""
    lines = [f"# {line}".rstrip() for line in remarks]
    lines += [f"{key} = {json.dumps(value)}" for key, value in tuned.model_dump(mode="json").items()]
    return "\n".join(lines) + "\n"
