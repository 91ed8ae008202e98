"""Whole models on the laptop: what is listed, and how everything that is not a whole model is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from material import write_checkpoint, write_model

from deployer.checkpoint import content
from deployer.checkpoint.listing import members
from deployer.checkpoint.model_folder import validated
from deployer.errors import PreflightError, UsageError

SECOND = "model-00002-of-00003.safetensors"
Change = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def overwrite(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, count: int) -> Change:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - count)


def edit(name: str, old: str, new: str) -> Change:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


def zero(name: str, begin: int, end: int) -> Change:
    def change(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.seek(begin)
            file.write(bytes(end - begin))

    return change


def test_a_whole_model_is_listed_by_name(model: Path) -> None:
    names = [member.name for member in validated(model)]
    assert names == [
        "config.json",
        "model-00001-of-00003.safetensors",
        SECOND,
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (cut(SECOND, 100), f"{SECOND} is truncated: 100 of"),
        (lambda folder: (folder / SECOND).open("ab").write(b"padding"), f"{SECOND} has 7 bytes after its last tensor"),
        (overwrite(SECOND, bytes(8192)), f"{SECOND} starts with zeros"),
        (overwrite(SECOND, b"version https://git-lfs.github.com/spec/v1\n"), f"{SECOND} is a Git LFS pointer"),
        (overwrite(SECOND, b"<!DOCTYPE html><html>"), f"{SECOND} is an HTML"),
        (overwrite(SECOND, b""), f"{SECOND} is empty"),
        (overwrite("tokenizer.json", b"<html>"), "tokenizer.json is an HTML"),
        (overwrite("tokenizer.json", b'{"model": {'), "tokenizer.json is not JSON, cut off or damaged"),
        (overwrite("tokenizer.json", b"[" * 100_000), "tokenizer.json is not JSON, cut off or damaged"),
        (overwrite("tokenizer.model", b"version https://git-lfs.github.com/spec/v1\n"), "tokenizer.model is a Git LFS"),
        (zero(SECOND, 20_000, 120_000), f"{SECOND}: model.layers.2.mlp.up_proj.weight: bytes 20480 to 118784"),
        (lambda folder: (folder / SECOND).unlink(), f"{SECOND}: missing"),
        (edit("model.safetensors.index.json", "layers.2.", "layers.7."), "has no tensor model.layers.7.mlp"),
        (edit("model.safetensors.index.json", SECOND, "other.safetensors"), "other.safetensors: missing"),
        (overwrite("model.safetensors.index.json", b"[]"), "holds no weight_map"),
        (edit("config.json", "128", "256"), "is [320, 128], config.json says hidden_size 256"),
        (edit("config.json", "320", "640"), "is [320, 128], config.json says vocab_size 640"),
        (overwrite("model-00004.safetensors.aria2", b"x"), "is an unfinished download"),
        (overwrite("x.incomplete", b"x"), "is an unfinished download"),
        (lambda folder: (folder / "gone").symlink_to("../blobs/abc"), "'gone' in the model's folder is a link to"),
        (lambda folder: (folder / "up").symlink_to(".."), "'up/model' in the model's folder is a link to a folder"),
        (lambda folder: os.mkfifo(folder / "pipe"), "'pipe' in the model's folder is neither"),
        (lambda folder: (folder / ("n" * 245)).write_text(""), "has a name of 245 bytes"),
        (lambda folder: Path(os.fsdecode(bytes(folder) + b"/\xff")).write_text(""), "a name that is not UTF-8"),
    ],
)
def test_what_is_not_whole_is_named(model: Path, change: Change, named: str) -> None:
    change(model)
    with pytest.raises(PreflightError) as caught:
        validated(model)
    assert named in str(caught.value)
    assert str(model) in str(caught.value)


def test_a_folder_without_config_or_weights_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        validated(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PreflightError, match="holds no weights"):
        validated(tmp_path)


def test_several_problems_are_named_at_once_and_the_rest_counted(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", shards=12)
    for number in range(2, 12):
        (model / f"model-{number:05}-of-00012.safetensors").unlink()
    with pytest.raises(PreflightError) as caught:
        validated(model)
    assert "model-00002-of-00012.safetensors: missing" in str(caught.value)
    assert "... and 2 more" in str(caught.value)


def test_zeros_that_a_model_may_have_are_no_damage(tmp_path: Path) -> None:
    """A tensor of zeros as a whole, the padding of a vocabulary, and a page here and there."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    tensors: dict[str, tuple[int, ...]] = {
        "a.weight": (1024, 128),
        "adapter.weight": (1024, 128),
        "b.weight": (1024, 128),
        "lm_head.weight": (1024, 128),
    }
    file = write_checkpoint(folder / "model.safetensors", tensors)
    start = file.stat().st_size - 4 * 262_144
    zero("model.safetensors", start + 262_144, start + 2 * 262_144)(folder)
    zero("model.safetensors", start + 2 * 262_144 + 50_000, start + 2 * 262_144 + 60_000)(folder)
    zero("model.safetensors", start + 4 * 262_144 - 100_000, start + 4 * 262_144)(folder)
    assert len(content.read(file).zeros) == 3
    assert len(validated(folder)) == 2
    zero("model.safetensors", start + 262_144 - 100_000, start + 2 * 262_144)(folder)
    with pytest.raises(PreflightError, match=r"a\.weight: bytes \d+ to \d+ of the file are zeros"):
        validated(folder)


def test_a_snapshot_of_the_hubs_cache_is_followed_and_held_against_the_names_of_its_blobs(model: Path) -> None:
    blobs, snapshot = model.parent / "blobs", model.parent / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for file in model.iterdir():
        sha = content.read(file).sha256
        file.rename(blobs / sha)
        (snapshot / file.name).symlink_to(f"../blobs/{sha}")
    assert [member.source.parent for member in validated(snapshot)] == [blobs.resolve()] * 6
    damaged = (snapshot / SECOND).resolve()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    with pytest.raises(PreflightError, match=rf"{SECOND}: its SHA-256 is \w+\.\.\., the cache's name for it is"):
        validated(snapshot)


def test_odd_names_links_and_folders_are_listed_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub dir").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("not a part of the model")
    odd = ["sub dir/new\nline", "ünï-重み", "-dash", "*", "quote'\"$(x)", "back\\slash"]
    for name in odd:
        (folder / name).write_text(name)
    (folder / "linked").symlink_to(folder / "sub dir", target_is_directory=True)
    listed = {member.name: member.source.read_text() for member in members(folder)}
    assert listed == {name: name for name in odd} | {"linked/new\nline": "sub dir/new\nline"}


def test_contents_are_read_once_and_again_after_any_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "f", []
    path.write_bytes(b"x" * 5000 + bytes(20_000) + b"x")
    real = content.scan
    monkeypatch.setattr(content, "scan", lambda file: reads.append(file) or real(file))
    first = content.read(path)
    assert first.zeros == ((8192, 24_576),)
    assert content.read(path) == first
    assert len(reads) == 1
    before = path.stat()
    path.write_bytes(b"y" * 25_001)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content.read(path).sha256 != first.sha256
    assert len(reads) == 2


@pytest.mark.parametrize(
    "entry",
    [
        "null",
        "7",
        "[]",
        '["ab"]',
        "[null, []]",
        '["SHA", [1]]',
        '["SHA", [[1]]]',
        '["SHA", [["a", "b"]]]',
        '["SHA", {}]',
        '["ab", []]',
    ],
)
def test_an_entry_that_cannot_be_made_out_is_as_if_there_were_none(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    read = content.read(path)
    remembered = Path(os.environ["XDG_CACHE_HOME"]) / "ddtree-deploy/contents.json"
    (key,) = json.loads(remembered.read_text())
    remembered.write_text(f'{{"{key}": {entry.replace("SHA", "0" * 64)}, "other": ["{"1" * 64}", [[0, 4096]]]}}')
    assert content.read(path) == read
    assert json.loads(remembered.read_text()) == {key: [read.sha256, []], "other": ["1" * 64, [[0, 4096]]]}


@pytest.mark.parametrize("text", [b"[]", b"null", b"7", b"{", b"", b"\xff", b"[" * 100_000])
def test_a_cache_that_cannot_be_made_out_is_as_if_there_were_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    read = content.read(path)
    remembered = Path(os.environ["XDG_CACHE_HOME"]) / "ddtree-deploy/contents.json"
    remembered.write_bytes(text)
    assert content.read(path) == read
    assert len(json.loads(remembered.read_text())) == 1


def test_a_file_of_zeros_to_its_end_is_one_region(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 4096 + bytes(2 * content.BLOCK + 100))
    assert content.read(path).zeros == ((4096, 4096 + 2 * content.BLOCK + 100),)
    path.write_bytes(json.dumps({}).encode())
    assert content.read(path).zeros == ()
