"""Profiles: what a drafter's shapes must be, and the part of its config.json that no header says."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path

from pydantic import ConfigDict, Field, model_validator

from deployer.checkpoint.shapes import Dimensions
from deployer.errors import UsageError
from deployer.inventory.load import validated
from deployer.inventory.model import Section

BUNDLED = Path(__file__).parent / "profiles"


class DFlashKeys(Section):
    """The `dflash_config` of config.json. Layer numbers as the checkpoint's authors count them; vLLM adds 1."""

    mask_token_id: int = Field(ge=0)
    target_layer_ids: list[int] = Field(min_length=1)


class ProfileConfig(Section):
    """The keys of config.json that come from the profile. Others are allowed and passed through as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    architectures: list[str]
    model_type: str
    block_size: int = Field(ge=2)
    dflash_config: DFlashKeys
    num_target_layers: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    layer_types: list[str]


class Profile(Section):
    """One kind of drafter."""

    name: str
    dtype: str = Field(description="safetensors' name of the dtype of every tensor, e.g. BF16")
    shapes: Dimensions
    config: ProfileConfig

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        keys, layers = self.config.dflash_config, self.config.num_target_layers
        if len(keys.target_layer_ids) != self.shapes.target_layers:
            raise ValueError(
                f"{len(keys.target_layer_ids)} target_layer_ids for shapes.target_layers = {self.shapes.target_layers}"
            )
        if max(keys.target_layer_ids) + 1 >= layers:  # vLLM reads hidden_states[id + 1]
            raise ValueError(f"target_layer_ids {keys.target_layer_ids} do not fit {layers} target layers")
        if len(self.config.layer_types) != self.shapes.layers:
            raise ValueError(f"{len(self.config.layer_types)} layer_types for {self.shapes.layers} layers")
        if keys.mask_token_id >= self.config.vocab_size:
            raise ValueError(
                f"mask_token_id {keys.mask_token_id} is outside the vocabulary of {self.config.vocab_size}"
            )
        return self


def bundled() -> dict[str, Path]:
    """Names of the profiles that come with the deployer, and their files."""
    return {tomllib.loads(path.read_text())["name"]: path for path in sorted(BUNDLED.glob("*.toml"))}


def load(reference: str) -> Profile:
    """A profile by bundled name or by its TOML file's path.

    Raises UsageError when there is none, when it cannot be read, or when it contradicts itself.
    """
    path = Path(reference) if reference.endswith(".toml") else bundled().get(reference)
    if path is None or not path.is_file():
        near = get_close_matches(reference, bundled(), n=1) or list(bundled())
        raise UsageError(f"no such profile: {reference}", where="drafter.profile", remedy=f"known: {', '.join(near)}")
    return validated(Profile, path)
