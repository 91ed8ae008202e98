"""The host fetches a model from the hub: the real huggingface_hub against a stand-in for the hub on loopback."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import planted
import pytest
from hub_host import ENGINE, MARKS, fetched, hurried, install
from hub_stand_in import COMMIT, StandInHub
from material import inventory_for, write_model
from recorder import Recorder
from units_stand_in import Units

from deployer.errors import DeployError, Exit, PreflightError, TransferError
from deployer.hub import job, plan
from deployer.inventory.model import Hub, Inventory
from deployer.push import published
from deployer.transport.faults import LineBroken
from deployer.transport.local import LocalTransport

REPO = "owner/Big-Target"
pytestmark = MARKS


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandInHub]:
    folder = write_model(tmp_path / "published")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights once more" * 100)
    (folder / "README.md").write_text("# Big target\n")
    with StandInHub(REPO, folder).serving() as running:
        yield running


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Units]:
    with hurried(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path, hub: StandInHub, units: Units) -> Inventory:
    """A host with a release, whose target lies on the hub."""
    install(tmp_path / "root")
    return asking(inventory_for(tmp_path, drafter), Hub(repo=REPO, endpoint=hub.endpoint))


def asking(inventory: Inventory, hub: Hub) -> Inventory:
    return inventory.model_copy(update={"target": inventory.target.model_copy(update={"hub": hub})})


def changed(inventory: Inventory, **changes: object) -> Inventory:
    assert inventory.target.hub is not None
    return asking(inventory, Hub.model_validate({**inventory.target.hub.model_dump(), **changes}))


def failed(inventory: Inventory) -> DeployError:
    with pytest.raises(DeployError) as caught:
        fetched(inventory)
    assert not Path(inventory.target.path).exists(), "nothing half-done under a final name"
    return caught.value


def test_the_host_fetches_the_model_and_a_second_run_does_nothing(inventory: Inventory, hub: StandInHub) -> None:
    local = LocalTransport()
    first = fetched(inventory)
    folder = Path(published.target_dir(inventory, local))
    assert Path(inventory.target.path).resolve() == folder
    names = set(hub.files) - {".gitattributes", "pytorch_model.bin"}
    assert {path.name for path in folder.iterdir()} == {*names, ".sha256sums"}
    assert all((folder / name).read_bytes() == hub.files[name] for name in names)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    assert any(f"main is commit {COMMIT} here since" in line for line in first.lines), "a branch is pinned, and said"
    before = len(hub.asked)
    second = plan.plan(inventory, local)
    assert second.pending == ()
    assert "every file is there, checked" in second.steps[0].reason
    hub.branches["main"] = "f" * 40
    assert plan.plan(inventory, local).pending == (), "the branch moved, the pin did not"
    assert len(hub.asked) == before, "and nobody asked the hub"
    assert not list(Path(inventory.root).rglob("*.part"))


@pytest.mark.full
def test_the_same_contents_pushed_from_the_laptop_are_the_same_folder(inventory: Inventory, hub: StandInHub) -> None:
    fetched(inventory)
    for name in (".gitattributes", "pytorch_model.bin"):
        (hub.folder / name).unlink()
    target = inventory.target.model_copy(update={"hub": None, "push": hub.folder})
    from deployer.push import model

    pushed = model.target(inventory.model_copy(update={"target": target}))
    assert pushed is not None
    assert pushed.identifier == Path(published.target_dir(inventory, LocalTransport())).name


@pytest.mark.full
def test_a_commit_needs_no_look_up_and_the_plan_says_what_it_would_do(inventory: Inventory, hub: StandInHub) -> None:
    pinned, local = changed(inventory, revision=COMMIT), LocalTransport()
    planned = plan.plan(pinned, local)
    assert [step.needed for step in planned.steps] == [True, True, True]
    assert planned.steps[0].reason == f"commit {COMMIT[:12]}; nothing of it was fetched yet"
    assert hub.asked == [], "--plan asks nobody"
    fetched(pinned)
    assert plan.plan(pinned, local).pending == ()


def test_without_a_release_one_sentence_says_what_comes_first(inventory: Inventory) -> None:
    Path(inventory.root, "current").unlink()
    with pytest.raises(PreflightError, match="there is no release yet") as caught:
        plan.plan(inventory, LocalTransport())
    assert "ddtree-deploy install local" in caught.value.remedy


def large(hub: StandInHub) -> str:
    return "model-00001-of-00003.safetensors"


@pytest.mark.full
def test_a_download_cut_in_the_middle_is_continued_at_its_last_piece(inventory: Inventory, hub: StandInHub) -> None:
    hub.cuts = [100_000, 30_000, 10, 0]
    fetched(inventory)
    ranges = [asked.range for asked in hub.downloads if asked.range]
    assert f"bytes={100_000 // 4096 * 4096}-" in ranges
    folder = Path(inventory.target.path)
    assert all((folder / path).read_bytes() == hub.files[path] for path in os.listdir(folder) if path in hub.files)


def on_its_way(inventory: Inventory) -> int:
    """Bytes of the parts that are there now; one that is published meanwhile is none any more."""
    size = 0
    for part in Path(inventory.root, "models/store").glob("*/*.part"):
        with suppress(FileNotFoundError):
            size += part.stat().st_size
    return size


def test_a_fetch_that_is_killed_goes_on_where_it_was(inventory: Inventory, hub: StandInHub, units: Units) -> None:
    hub.slow = threading.Event()
    with ThreadPoolExecutor(1) as tool:
        watching = tool.submit(fetched, inventory)
        try:
            deadline = time.monotonic() + 60
            while on_its_way(inventory) < 190_000:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            units.kill()
        finally:
            hub.slow.set()
        watching.result(timeout=60)
    assert Path(inventory.target.path, "config.json").exists(), "begun again by who watched it"
    assert any(asked.range for asked in hub.downloads), "from the last piece"


def test_a_second_run_meets_the_fetch_that_is_under_way(inventory: Inventory, hub: StandInHub, units: Units) -> None:
    """As after a cut: whoever started it is gone, the fetch is not."""
    hub.slow = threading.Event()
    request = plan.requests(inventory)[0]
    local, layout = LocalTransport(), plan.Layout.of(inventory)
    job.start(local, layout, request, str(ENGINE / "bin/python"), ())
    deadline = time.monotonic() + 60
    while not on_its_way(inventory):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "a fetch is under way there" in plan.plan(inventory, local).steps[0].reason
    resume = hub.slow.set

    class Meeting(Recorder):
        def say(self, line: str) -> None:
            super().say(line)
            if line == "a fetch is under way there: met again":
                resume()

    recorder = fetched(inventory, Meeting())
    assert Path(inventory.target.path, "config.json").exists()
    assert len(units.pids) == 1
    assert recorder.amounts[-1][0] == recorder.amounts[-1][1] > 0


@pytest.mark.full
def test_a_damaged_part_is_fetched_anew(inventory: Inventory, hub: StandInHub) -> None:
    data = hub.files[large(hub)]
    part = Path(inventory.root, "models/store", hashlib.sha256(data).hexdigest(), f"{large(hub)}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    fetched(inventory)
    assert Path(inventory.target.path, large(hub)).read_bytes() == data


def test_damage_in_the_store_is_found_and_only_that_file_fetched_again(inventory: Inventory, hub: StandInHub) -> None:
    fetched(inventory)
    file = Path(inventory.target.path, large(hub))
    file.write_bytes(b"damaged")
    hub.asked.clear()
    fetched(inventory)
    assert file.read_bytes() == hub.files[large(hub)]
    assert {asked.path for asked in hub.downloads if "storage" in asked.path} == {f"/storage/{large(hub)}"}


def test_the_token_reaches_the_hub_and_nothing_else(inventory: Inventory, hub: StandInHub, tmp_path: Path) -> None:
    hub.token, hub.gated = planted.SECRET, True
    gated = changed(inventory, token={"env": planted.VARIABLE})
    fetched(gated)
    assert Path(gated.target.path, "config.json").exists()
    assert {asked.token for asked in hub.asked if asked.path.startswith(("/api/models", f"/{REPO}"))} == {
        planted.SECRET
    }
    assert {asked.token for asked in hub.asked if asked.path.startswith("/storage/")} == {""}, "storage is another host"
    assert list((tmp_path / "run").iterdir()) == [], "its file is gone"


@pytest.mark.parametrize("away", [False, True], ids=["line up", "line down"])
def test_an_interrupt_before_the_fetch_has_begun_leaves_no_token_there(
    inventory: Inventory, hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    hub.token, hub.gated = planted.SECRET, True
    run = LocalTransport.run

    def interrupted(self: LocalTransport, command: str, **options: Any) -> Any:
        if command.startswith("systemd-run"):
            assert [path.read_text() for path in (tmp_path / "run").iterdir()] == [planted.SECRET]
            raise KeyboardInterrupt
        if away and command.startswith("rm -f"):
            raise LineBroken("the connection broke", where="local", remedy="run it again")
        return run(self, command, **options)

    monkeypatch.setattr(LocalTransport, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetched(changed(inventory, token={"env": planted.VARIABLE}))
    left = list((tmp_path / "run").iterdir())
    assert len(left) == away, "what a line that is down leaves lies in memory, until the next fetch takes its place"
    for path in left:
        path.unlink()


@pytest.mark.full
def test_a_failure_does_not_wait_for_what_else_is_on_its_way(inventory: Inventory, hub: StandInHub) -> None:
    hub.slow = threading.Event()
    hub.wrong["tokenizer.json"] = b"[]"
    error = failed(inventory)
    assert "tokenizer.json" in error.what
    assert not hub.slow.is_set()
    parts = list(Path(inventory.root).rglob("*.safetensors.part"))
    assert parts, "large files were in their middle, and stay to be continued"


def restricted(hub: StandInHub, token: str, *, gated: bool) -> None:
    hub.token, hub.gated = token, gated


# What is wrong, and the inventory that meets it, if it is another.
FAULTS: dict[str, Callable[[Inventory, StandInHub], Inventory | None]] = {
    "gated without a token": lambda _, hub: restricted(hub, "other", gated=True),
    "gated, not accepted": lambda inventory, hub: (
        restricted(hub, "", gated=True) or changed(inventory, token={"env": planted.VARIABLE})
    ),
    "private": lambda _, hub: restricted(hub, "other", gated=False),
    "no such repo": lambda inventory, _: changed(inventory, repo="owner/Other"),
    "no such revision": lambda inventory, _: changed(inventory, revision="v9"),
    "no hub there": lambda inventory, _: changed(inventory, endpoint="http://127.0.0.1:9"),
    "overloaded": lambda _, hub: setattr(hub, "busy", 1000),
    "wrong bytes": lambda _, hub: hub.wrong.update({large(hub): hub.files[large(hub)][:-1] + b"!"}),
    "wrong small file": lambda _, hub: hub.wrong.update({"tokenizer.json": b"[]"}),
    "no room": lambda *_: None,
    "no config.json": lambda _, hub: (hub.folder / "config.json").unlink(),
    "a shard is missing": lambda _, hub: (hub.folder / "model-00002-of-00003.safetensors").unlink(),
    "wrong shapes": lambda _, hub: (hub.folder / "config.json").write_text('{"hidden_size": 999}') and None,
}


@pytest.mark.parametrize(
    ("fault", "code", "what", "remedy"),
    [
        ("gated without a token", Exit.PREFLIGHT, "is gated", "accept them at http"),
        pytest.param(
            "gated, not accepted", Exit.PREFLIGHT, "is gated", "see that the token is valid", marks=pytest.mark.full
        ),
        ("private", Exit.PREFLIGHT, "the hub has no owner/Big-Target, or it is private", "name a token"),
        pytest.param(
            "no such repo",
            Exit.PREFLIGHT,
            "the hub has no owner/Other",
            "correct [target.hub] repo",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "no such revision",
            Exit.PREFLIGHT,
            "has no revision v9",
            "correct [target.hub] revision",
            marks=pytest.mark.full,
        ),
        ("no hub there", Exit.TRANSFER, "local does not reach the hub", "name its folder: [target] push"),
        pytest.param(
            "overloaded", Exit.TRANSFER, "the hub is overloaded", "run the same command", marks=pytest.mark.full
        ),
        ("wrong bytes", Exit.TRANSFER, "is not what the hub says it is", "a proxy or a mirror"),
        pytest.param(
            "wrong small file",
            Exit.TRANSFER,
            "is not what the hub says it is",
            "a proxy or a mirror",
            marks=pytest.mark.full,
        ),
        ("no room", Exit.PREFLIGHT, "not enough room for owner/Big-Target", "ddtree-deploy gc"),
        pytest.param(
            "no config.json",
            Exit.PREFLIGHT,
            "is no model: it has no config.json",
            "correct [target.hub]",
            marks=pytest.mark.full,
        ),
        ("a shard is missing", Exit.PREFLIGHT, "model-00002-of-00003.safetensors: missing", "another [target.hub] rev"),
        pytest.param(
            "wrong shapes",
            Exit.PREFLIGHT,
            "config.json says hidden_size 999",
            "another [target.hub] revision",
            marks=pytest.mark.full,
        ),
    ],
)
def test_each_failure_is_named_with_its_remedy(
    inventory: Inventory,
    hub: StandInHub,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    code: Exit,
    what: str,
    remedy: str,
) -> None:
    if fault == "no room":
        monkeypatch.setattr(job, "RESERVE", 1 << 60)
    error = failed(FAULTS[fault](inventory, hub) or inventory)
    assert what in error.what
    assert remedy in error.remedy
    assert error.exit_code == code
    assert isinstance(error, PreflightError | TransferError)
    assert "Traceback" not in str(error)
