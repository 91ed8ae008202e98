"""Checkpoints: what is read from a header, what is refused and how it is named, and the config.json made of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from material import REPOSITORY, write_checkpoint

from deployer.checkpoint import header, profiles, shapes
from deployer.checkpoint.config import config_from
from deployer.checkpoint.profiles import Profile
from deployer.checkpoint.validate import examined, validated
from deployer.errors import PreflightError, UsageError


def test_the_production_profile_has_the_published_tensors_and_size() -> None:
    profile = profiles.load("z-lab/Qwen3.6-27B-DFlash")
    tensors = shapes.tensors(profile.shapes)
    assert len(tensors) == 58
    assert tensors["fc.weight"] == (5120, 25600)
    assert tensors["layers.4.self_attn.q_proj.weight"] == (4096, 5120)
    parameters = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in tensors.values())
    assert 1.72e9 < parameters < 1.74e9


def test_a_fitting_checkpoint_gives_dimensions_and_config(drafter: Path, profile: Profile) -> None:
    read = validated(drafter, profile)
    assert shapes.measure(read) == profile.shapes
    config = config_from(read, profile)
    assert config["num_hidden_layers"] == 2
    assert config["head_dim"] == 64
    assert config["torch_dtype"] == "bfloat16"
    assert config["dflash_config"] == {"mask_token_id": 262, "target_layer_ids": [1, 3, 5]}
    assert config["block_size"] == 8


def test_the_config_equals_the_one_the_trained_pair_came_with(profile: Profile) -> None:
    folder = REPOSITORY / "build/pairs/hybrid/drafter"
    if not (folder / "config.json").is_file():
        pytest.skip("the trained pair is not made yet: make pairs")
    trained = json.loads((folder / "config.json").read_text())
    made = config_from(validated(folder / "model.safetensors", profile), profile)
    decisive = {key: value for key, value in trained.items() if key in made or key in {"is_causal", "rope_parameters"}}
    assert decisive == {key: made.get(key) for key in decisive}
    for key in ("hidden_size", "head_dim", "rope_theta", "layer_types", "dflash_config", "block_size", "vocab_size"):
        assert key in decisive


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (b"", "is empty"),
        (b"\0" * 4096, "starts with zeros"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b'{"error": "gated"}', "JSON text"),
        (b"GGUF\x03\0\0\0", "GGUF"),
        (b"PK\x03\x04", "zip or PyTorch"),
        (b"abc", "too short"),
        ((1 << 40).to_bytes(8, "little") + b"{", "no header length"),
        ((500).to_bytes(8, "little") + b"{", "truncated inside its header"),
        ((9).to_bytes(8, "little") + b'{"a": [}x', "damaged header"),
    ],
)
def test_what_is_not_a_checkpoint_is_named_for_what_it_is(tmp_path: Path, start: bytes, named: str) -> None:
    path = tmp_path / "drafter.safetensors"
    path.write_bytes(start)
    with pytest.raises(PreflightError) as caught:
        header.read(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def with_header(path: Path, text: bytes, data: bytes = b"") -> Path:
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    "length", [0x3C, 0x7B, 0x280, 0x10280, ord("<") + 0x100, int.from_bytes(b"PK\x03\x04", "little") % 0x10000]
)
def test_a_header_whose_length_is_another_formats_magic_is_a_header_all_the_same(tmp_path: Path, length: int) -> None:
    """640 is 80 02 in its first bytes, as a pickle begins; 0x3c is <, as a page does; 0x7b is {, as JSON does."""
    text = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, separators=(",", ":")).encode()
    path = with_header(tmp_path / "drafter.safetensors", text.ljust(length), b"\x3f")
    assert header.read(path).tensors["a"].shape == (1,)
    assert header.read(path).data_start == 8 + len(text.ljust(length))


def test_a_header_as_long_as_a_zips_magic_says_is_taken_for_one_too() -> None:
    header.refuse_impostor(Path("d.safetensors"), b"PK\x03\x04\0\0\0\0{")
    with pytest.raises(PreflightError, match="zip"):
        header.refuse_impostor(Path("d.safetensors"), b"PK\x03\x04\x14\0\0\0{")


@pytest.mark.parametrize("magic", [b"\x80\x02}q\0(X\x08{", b"<html>\n {", b'{"a": 1,{', b"GGUF\x03\0\0\0{"])
def test_a_brace_in_the_right_place_alone_makes_no_header(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "drafter.safetensors"
    path.write_bytes(magic + b"x" * 100)
    with pytest.raises(PreflightError, match=r" is (a|JSON)"):
        header.read(path)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1e999]}}',
        b'{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,NaN]}}',
        b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":["0","1"]}}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":[]}',
        b'{"\xff":{}}',
    ],
    ids=lambda text: text[:60].decode(errors="replace"),
)
def test_a_header_that_is_no_header_is_damaged_whatever_it_holds(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(PreflightError, match="has a damaged header"):
        header.read(with_header(tmp_path / "drafter.safetensors", text, b"\x3f"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_regular_file_is_refused_before_it_is_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe without a writer is waited for forever, a device has no end."""
    path = tmp_path / "drafter.safetensors"
    make(path)
    with pytest.raises(PreflightError, match="is not a regular file") as caught:
        header.read(path)
    assert caught.value.where == str(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="cannot be read: No such file"):
        header.read(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize(("change", "named"), [(-1000, "truncated: 1000 of"), (7, "7 bytes after its last tensor")])
def test_the_length_is_held_against_the_offsets(drafter: Path, change: int, named: str) -> None:
    data = drafter.read_bytes()
    drafter.write_bytes(data[:change] if change < 0 else data + b"x" * change)
    with pytest.raises(PreflightError, match=named):
        header.read(drafter)


def test_a_gap_between_tensors_is_damage(tmp_path: Path) -> None:
    text = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}}).encode()
    path = tmp_path / "gap.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x3f" * 8)
    with pytest.raises(PreflightError, match="gap or an overlap before tensor a"):
        header.read(path)


def test_every_disagreement_with_the_profile_is_named(tmp_path: Path, profile: Profile) -> None:
    tensors = shapes.tensors(profile.shapes)
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["layers.0.self_attn.q_proj.weight"] = (512, 128)
    tensors["lm_head.weight"] = (320, 128)
    with pytest.raises(PreflightError) as caught:
        validated(write_checkpoint(tmp_path / "d.safetensors", tensors), profile)
    message = str(caught.value)
    assert "layers.1.mlp.up_proj.weight: missing, expected [256, 128]" in message
    assert "layers.0.self_attn.q_proj.weight: expected shape [256, 128], found [512, 128]" in message
    assert "lm_head.weight: unexpected, [320, 128]" in message


def test_another_dtype_is_a_disagreement(tmp_path: Path, profile: Profile) -> None:
    path = write_checkpoint(tmp_path / "d.safetensors", shapes.tensors(profile.shapes), dtype="F16")
    with pytest.raises(PreflightError, match="expected dtype BF16, found F16"):
        validated(path, profile)


def test_a_half_that_never_arrived_is_found_although_the_header_is_whole(drafter: Path, profile: Profile) -> None:
    data = drafter.read_bytes()
    drafter.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(PreflightError, match="tensors end in zeros"):
        validated(drafter, profile)


def test_a_targets_checkpoint_is_not_a_drafter(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "t.safetensors", {"model.embed_tokens.weight": (320, 128)})
    with pytest.raises(PreflightError, match=r"not a DFlash drafter: tensor norm\.weight is absent"):
        shapes.measure(header.read(path))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[1, 3, 5]", "[1, 3, 7]", "do not fit 8 target layers"),
        ("[1, 3, 5]", "[1, 3]", "2 target_layer_ids"),
        ("mask_token_id = 262", "mask_token_id = 352", "outside the vocabulary"),
        ("layers = 2\n", "layers = 3\n", "2 layer_types for 3 layers"),
        ("block_size = 8", "block_size = 1", "block_size"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = (REPOSITORY / "inventory/profiles/tiny-hybrid.toml").read_text()
    path = tmp_path / "p.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=named):
        profiles.load(str(path))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'name = "\xff"\n', "it is not text"),
        (b"\nname = x\ny = 1\n", r"not valid TOML.*line 2"),
        (b"x = " + b"[" * 50_000, "brackets lie in brackets"),
        (b'nmae = "x"\n', r"unknown key nmae(.|\n)*did you mean name"),
    ],
    ids=["latin-1", "cut", "nested", "a key of another name"],
)
def test_a_profile_that_cannot_be_read_is_named_as_an_inventory_is(tmp_path: Path, data: bytes, named: str) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        profiles.load(str(path))
    assert re.search(named, str(caught.value))
    assert caught.value.where == str(path)


def test_an_unknown_profile_gets_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"z-lab/Qwen3\.6-27B-DFlash"):
        profiles.load("z-lab/Qwen3.6-27B-DFlsh")


def test_a_hole_in_the_middle_of_a_drafter_is_found_by_looking_at_every_byte(drafter: Path, profile: Profile) -> None:
    start = header.read(drafter)
    begin = start.data_start + start.tensors["layers.0.mlp.up_proj.weight"].begin
    at = -(-begin // 4096) * 4096
    with drafter.open("r+b") as file:
        file.seek(at)
        file.write(bytes(4096))
    validated(drafter, profile)
    with pytest.raises(
        PreflightError, match=rf"layers\.0\.mlp\.up_proj\.weight: bytes {at} to {at + 4096} of the file"
    ):
        examined(drafter, profile)
