"""The drafter from the hub: what the host fetches becomes the same folder as a checkpoint that is pushed, under the same
checks. The real huggingface_hub against a stand-in for the hub on loopback.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_host import MARKS, fetched, hurried, install
from hub_stand_in import COMMIT, StandInHub
from material import TINY_PROFILE, inventory_for, write_checkpoint
from recorder import Recorder
from units_stand_in import Units

from deployer.checkpoint import shapes
from deployer.checkpoint.profiles import Profile
from deployer.errors import PreflightError
from deployer.hub import plan as fetching
from deployer.inventory.model import Drafter, Hub, Inventory
from deployer.plan import apply
from deployer.plan.layout import Layout
from deployer.push import gc, model, plan, published
from deployer.transport.local import LocalTransport

REPO = "owner/Tiny-DFlash"
LOCAL = LocalTransport()
pytestmark = MARKS


@pytest.fixture
def hub(tmp_path: Path, profile: Profile) -> Iterator[StandInHub]:
    """As drafters are published: a configuration and code beside the weights."""
    folder = tmp_path / "published"
    folder.mkdir()
    write_checkpoint(folder / "model.safetensors", shapes.tensors(profile.shapes))
    (folder / "config.json").write_text('{"model_type": "qwen3", "by": "its authors"}')
    (folder / "dflash.py").write_text("raise SystemExit('code of the hub')\n")
    with StandInHub(REPO, folder).serving() as running:
        yield running


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Units]:
    with hurried(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
def inventory(tmp_path: Path, hub: StandInHub, units: Units) -> Inventory:
    """A host with a release, whose drafter lies on the hub."""
    install(tmp_path / "root")
    asked = Drafter(hub=Hub(repo=REPO, endpoint=hub.endpoint), profile=str(TINY_PROFILE))
    return inventory_for(tmp_path, tmp_path / "none").model_copy(update={"drafter": asked})


def link(inventory: Inventory) -> Path:
    return Path(Layout.of(inventory).models, model.drafter_slug(inventory))


def test_the_host_fetches_the_weights_alone_and_a_second_run_does_nothing(
    inventory: Inventory, hub: StandInHub
) -> None:
    assert plan.plan(inventory, LOCAL).steps == (), "the laptop has nothing to send"
    said = fetched(inventory).lines
    folder = Path(published.drafter_dir(inventory, LOCAL))
    assert link(inventory).resolve() == folder
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", ".sha256sums"}
    weights = hub.files["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == weights
    assert f"{hashlib.sha256(weights).hexdigest()}  model.safetensors\n" in (folder / ".sha256sums").read_text()
    config = json.loads((folder / "config.json").read_text())
    assert config["dflash_config"]["target_layer_ids"], "made of the profile, as a pushed one's is"
    assert "by" not in config
    assert any(f"main is commit {COMMIT} here since" in line for line in said), "a branch is pinned, and said"
    before = len(hub.asked)
    assert fetching.plan(inventory, LOCAL).pending == ()
    assert len(hub.asked) == before, "and nobody asked the hub"


def test_the_same_checkpoint_pushed_from_the_laptop_is_the_same_folder(inventory: Inventory, hub: StandInHub) -> None:
    fetched(inventory)
    here = inventory_for(Path(inventory.root).parent, hub.folder / "model.safetensors")
    assert published.drafter_dir(here, LOCAL) == published.drafter_dir(inventory, LOCAL)
    assert plan.plan(here, LOCAL).pending == (), "nothing to send, nothing to publish"


def test_one_that_does_not_fit_the_profile_gets_no_name(
    inventory: Inventory, hub: StandInHub, profile: Profile
) -> None:
    tensors = shapes.tensors(profile.shapes) | {"fc.weight": (2, 2)}
    write_checkpoint(hub.folder / "model.safetensors", tensors)
    with pytest.raises(PreflightError, match=f"does not fit profile {profile.name}") as caught:
        fetched(inventory)
    assert "fc.weight" in caught.value.what
    assert caught.value.where == f"local: {hub.endpoint}/{REPO}"
    assert not link(inventory).exists()
    assert [path.name for path in link(inventory).parent.iterdir()] == ["store"], "nothing half-done under a final name"


def test_one_with_a_page_of_zeros_gets_no_name_either_however_often_it_is_asked_for(
    inventory: Inventory, hub: StandInHub
) -> None:
    weights = bytearray((hub.folder / "model.safetensors").read_bytes())
    weights[-12_288:-4096] = bytes(8192)
    (hub.folder / "model.safetensors").write_bytes(weights)
    for _ in range(2):
        with pytest.raises(PreflightError, match=r"bytes \d+ to \d+ of the file are zeros") as caught:
            fetched(inventory)
        assert caught.value.where == f"local: {hub.endpoint}/{REPO}"
        assert [path.name for path in link(inventory).parent.iterdir()] == ["store"]


def test_a_page_in_the_weights_place_and_a_repository_without_them_are_named(
    inventory: Inventory, hub: StandInHub
) -> None:
    (hub.folder / "model.safetensors").write_text("<html>log in</html>")
    with pytest.raises(PreflightError, match=r"model\.safetensors is an HTML or XML page"):
        fetched(inventory)
    (hub.folder / "model.safetensors").rename(hub.folder / "pytorch_model.bin")
    other = inventory.drafter.model_copy(update={"hub": Hub(repo=REPO, endpoint=hub.endpoint, revision=COMMIT)})
    with pytest.raises(PreflightError, match=r"there is no model\.safetensors"):
        fetched(inventory.model_copy(update={"drafter": other}))


def test_before_the_fetch_whoever_needs_it_says_what_to_do(inventory: Inventory) -> None:
    with pytest.raises(PreflightError, match="owner/Tiny-DFlash at main was not fetched yet") as caught:
        published.drafter_dir(inventory, LOCAL)
    assert caught.value.remedy == "ddtree-deploy push local"


def test_gc_keeps_what_the_host_fetched_by_the_inventory(inventory: Inventory) -> None:
    fetched(inventory)
    link(inventory).unlink()
    recorder = Recorder()
    apply.run(gc.plan(inventory, LOCAL), recorder)
    assert Path(published.drafter_dir(inventory, LOCAL)).is_dir()
    assert any("it is what would be pushed now" in said for said in recorder.skipped)
