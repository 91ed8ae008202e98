"""A drafter or target that the host fetched is judged as one that is pushed: the same damage, the same words. The host is
this machine, its programs are the real ones; nothing is fetched here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeTransport
from material import TINY_PROFILE, inventory_for, write_checkpoint, write_model

from deployer.checkpoint import header, model_folder, remote_zeros, shapes
from deployer.checkpoint.profiles import Profile
from deployer.checkpoint.validate import examined
from deployer.errors import PreflightError, TransferError
from deployer.hub import judge
from deployer.hub.request import request
from deployer.inventory.model import Drafter, Hub, Inventory
from deployer.plan.layout import Layout
from deployer.plan.reading import watched
from deployer.push.digest import call
from deployer.push.model import WEIGHTS, Blob, Model
from deployer.push.plan import places
from deployer.transport.base import Result
from deployer.transport.local import LocalTransport

Damage = Callable[[Path], None]
HUB = Hub(repo="owner/Tiny", endpoint="http://127.0.0.1:9")


def half(file: Path, of: int = 2) -> None:
    """What a copy that did not finish leaves in a file that was given its size before: a half, or another part, is there."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // of] + bytes(len(data) - len(data) // of))


def page(file: Path) -> None:
    """One page in the middle of a tensor: no end of a tensor shows it."""
    name = "layers.1.mlp.up_proj.weight"
    found = header.read(file)
    at = (found.data_start + found.tensors[name].begin) // 4096 * 4096 + 4096
    data = bytearray(file.read_bytes())
    data[at : at + 4096] = bytes(4096)
    file.write_bytes(data)


def norm(file: Path) -> None:
    """A tensor of 256 bytes: no whole page shows it."""
    found = header.read(file)
    tensor = found.tensors["norm.weight"]
    data = bytearray(file.read_bytes())
    data[found.data_start + tensor.begin : found.data_start + tensor.end] = bytes(tensor.end - tensor.begin)
    file.write_bytes(data)


def other(file: Path) -> None:
    """Of other shapes, and its second half zeros."""
    write_checkpoint(file, {"fc.weight": (64, 64), "norm.weight": (128,)})
    half(file)


def judged(folder: Path, checkpoint: Path) -> None:
    """It lies in the host's store, as after a fetch."""
    asked = Drafter(hub=HUB, profile=str(TINY_PROFILE))
    inventory = inventory_for(folder, folder / "none").model_copy(update={"drafter": asked})
    in_store(inventory, "drafter", (Blob.here(WEIGHTS, checkpoint),))


def judged_target(folder: Path, published: Path) -> None:
    """Its whole folder lies in the host's store, as after a fetch."""
    inventory = inventory_for(folder, folder / "none")
    asked = inventory.target.model_copy(update={"hub": HUB})
    files = sorted(path for path in published.iterdir())
    in_store(
        inventory.model_copy(update={"target": asked}), "target", tuple(Blob.here(path.name, path) for path in files)
    )


def in_store(inventory: Inventory, kind: str, blobs: tuple[Blob, ...]) -> None:
    wanted, layout = request(inventory, kind), Layout.of(inventory)
    assert wanted is not None
    model = Model(kind, wanted.slug, blobs, wanted.texts)
    for blob in blobs:
        assert blob.source is not None
        stored = Path(places(layout, model)[blob.sha256])
        stored.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(blob.source, stored)
    judge.check(LocalTransport(), layout, wanted, model)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (half, r"\d+ of 25 tensors end in zeros"),
        (page, r"layers\.1\.mlp\.up_proj\.weight: bytes \d+ to \d+ of the file are zeros"),
        (norm, r"1 of 25 tensors end in zeros .*: norm\.weight"),
        (other, r"fc\.weight: expected shape"),
    ],
)
def test_the_damage_of_a_fetched_one_is_named_as_that_of_a_pushed_one(
    tmp_path: Path, drafter: Path, profile: Profile, damage: Damage, named: str
) -> None:
    damage(drafter)
    with pytest.raises(PreflightError, match=named) as pushed:
        examined(drafter, profile)
    with pytest.raises(PreflightError) as fetched:
        judged(tmp_path, drafter)
    assert (fetched.value.what, fetched.value.remedy) == (pushed.value.what, pushed.value.remedy)
    assert fetched.value.where == "local: http://127.0.0.1:9/owner/Tiny"


def test_a_whole_one_passes(tmp_path: Path, drafter: Path) -> None:
    judged(tmp_path, drafter)
    judged_target(tmp_path / "target", write_model(tmp_path / "published"))


def test_a_fetched_targets_weights_are_read_under_the_eyes_of_whoever_waits(tmp_path: Path) -> None:
    """54 GB take minutes."""
    published = write_model(tmp_path / "published")
    told: list[tuple[str, int, int]] = []
    with watched(lambda *said: told.append(said)):
        judged_target(tmp_path / "host", published)
    sizes = [path.stat().st_size for path in sorted(published.glob("*.safetensors"))]
    assert told[-1] == ("weights on local", sum(sizes), sum(sizes))
    assert ("weights on local", sizes[0], sum(sizes)) in told


def test_a_fetched_targets_shard_that_ends_in_zeros_is_named_as_that_of_a_pushed_one(tmp_path: Path) -> None:
    published = write_model(tmp_path / "published")
    half(published / "model-00002-of-00003.safetensors", of=4)
    with pytest.raises(PreflightError, match=r"model-00002-of-00003\.safetensors: .*up_proj\.weight: bytes") as pushed:
        model_folder.validated(published)
    with pytest.raises(PreflightError) as fetched:
        judged_target(tmp_path / "host", published)
    assert fetched.value.what == pushed.value.what
    assert "/owner/Tiny/discussions" in fetched.value.remedy


def test_the_host_reads_the_ends_of_the_tensors_first_and_the_whole_file_only_if_they_are_sound(
    drafter: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    ask = judge.Script.ask

    def counted(self: judge.Script, transport: LocalTransport, verb: str, *words: object) -> object:
        asked.append(verb)
        return ask(self, transport, verb, *words)

    monkeypatch.setattr(judge.Script, "ask", counted)
    half(drafter)
    with pytest.raises(PreflightError):
        judged(tmp_path / "damaged", drafter)
    whole = write_checkpoint(tmp_path / "whole.safetensors", shapes.tensors(profile.shapes))
    judged(tmp_path / "sound", whole)
    assert asked == ["heads", "empty", "heads", "empty", "pages"]


def test_the_host_finds_the_pages_that_the_laptop_finds_across_its_blocks_and_at_the_end(tmp_path: Path) -> None:
    file, block = tmp_path / "f", remote_zeros.BLOCK
    file.write_bytes(b"x" * (block - 8192) + bytes(16_384) + b"x" * 4095 + bytes(1) + bytes(100))
    program = call(Path(remote_zeros.__file__).read_text(), "pages", str(file))
    said = subprocess.run([sys.executable, "-I", "-S", "-"], input=program, capture_output=True, text=True, check=True)
    assert said.stdout == f"[[{block - 8192}, {block + 8192}], [{block + 12_288}, {block + 12_388}]]\n"
    assert remote_zeros.pages(str(file)) == [(block - 8192, block + 8192), (block + 12_288, block + 12_388)]


def test_a_disk_that_cannot_read_it_is_an_error_of_the_way() -> None:
    host = FakeTransport({"python3 -I -S -": Result("", remote_zeros.FAILED, "", "[Errno 5] Input/output error")})
    with pytest.raises(TransferError, match=r"reading what was fetched failed \(pages\): \[Errno 5\]") as caught:
        judge.There(host, "/store/x").pages()
    assert "see dmesg" in caught.value.remedy
