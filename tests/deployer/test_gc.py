"""gc: what nothing refers to goes, everything else stays, and each says why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from material import REPOSITORY, inventory_for, write_checkpoint, write_model
from recorder import Recorder

from deployer.checkpoint import shapes
from deployer.checkpoint.profiles import Profile
from deployer.inventory.model import Inventory
from deployer.plan import apply
from deployer.push import gc, plan, published
from deployer.push.gc import Entry, Folder, Survey, judge
from deployer.transport.local import LocalTransport

pytestmark = pytest.mark.slow

FOLDER, OTHER = "tiny-0123456789ab", "tiny-ba9876543210"


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path) -> Inventory:
    return inventory_for(tmp_path, drafter, push=str(write_model(tmp_path / "target")))


def push(inventory: Inventory) -> tuple[Path, ...]:
    """Pushes, and returns the folders of drafter and target."""
    local = LocalTransport()
    apply.run(plan.plan(inventory, local), Recorder())
    return Path(published.drafter_dir(inventory, local)), Path(published.target_dir(inventory, local))


def another_drafter(inventory: Inventory, profile: Profile, byte: bytes) -> None:
    write_checkpoint(inventory.drafter.file, shapes.tensors(profile.shapes))
    data = inventory.drafter.file.read_bytes()
    inventory.drafter.file.write_bytes(data[:-1] + byte)


def age(root: Path) -> None:
    """Two days go by."""
    then = time.time() - 2 * 86_400
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            os.utime(path, (then, then))


def collected(inventory: Inventory) -> Recorder:
    recorder = Recorder()
    apply.run(gc.plan(inventory, LocalTransport()), recorder)
    return recorder


def test_an_older_drafter_goes_with_its_weights_and_nothing_else_and_a_second_run_does_nothing(
    inventory: Inventory, profile: Profile
) -> None:
    old, target = push(inventory)
    another_drafter(inventory, profile, b"2")
    new, _ = push(inventory)
    models = Path(inventory.root) / "models"
    age(models)
    planned = gc.plan(inventory, LocalTransport())
    assert next(step.title.split(" (")[0] for step in planned.pending) == f"remove {old}"
    assert len(planned.pending) == 2
    assert old.exists(), "a plan changes nothing"
    collected(inventory)
    assert not old.exists()
    assert new.is_dir()
    assert target.is_dir()
    names = {path.name for path in (models / "store").iterdir()}
    assert len(names) == 1 + len(list(target.iterdir())) - 1
    assert not plan.plan(inventory, LocalTransport()).pending, "what stays is whole"
    assert not gc.plan(inventory, LocalTransport()).pending
    assert not list(models.rglob("*.part"))


@pytest.mark.parametrize("kept_release", [True, False])
def test_a_record_keeps_its_model_as_long_as_its_release_is_there(
    inventory: Inventory, profile: Profile, kept_release: bool
) -> None:
    old, _ = push(inventory)
    another_drafter(inventory, profile, b"2")
    push(inventory)
    root = Path(inventory.root)
    record = root / "state/deployments/20260101T000000Z-abcdef01"
    record.mkdir(parents=True)
    (record / "config").write_text(f'speculative-config: {{"method": "dflash", "model": "{old}"}}\n')
    (record / "release").symlink_to(root / "releases/r1")
    if kept_release:
        (root / "releases/r1").mkdir(parents=True)
    age(root / "models")
    recorder = collected(inventory)
    assert old.exists() == kept_release
    assert any(f"keep {old}" in said and f"{record}/config refers to it" in said for said in recorder.skipped) == (
        kept_release
    )


def test_a_model_that_a_process_has_open_stays(inventory: Inventory, profile: Profile) -> None:
    old, _ = push(inventory)
    another_drafter(inventory, profile, b"2")
    push(inventory)
    age(Path(inventory.root))
    with (old / "model.safetensors").open("rb") as opened, subprocess.Popen(["sleep", "60"], stdin=opened) as reader:
        recorder = collected(inventory)
        reader.kill()
    assert old.exists()
    assert any(f"process {reader.pid}" in said for said in recorder.skipped)
    collected(inventory)
    assert not old.exists()


def test_what_came_to_use_between_plan_and_apply_is_left_alone(inventory: Inventory, profile: Profile) -> None:
    old, _ = push(inventory)
    another_drafter(inventory, profile, b"2")
    push(inventory)
    age(Path(inventory.root))
    planned, recorder = gc.plan(inventory, LocalTransport()), Recorder()
    (old.parent / "pinned").symlink_to(old)
    apply.run(planned, recorder)
    assert old.is_dir()
    assert f"left alone: link {old.parent}/pinned refers to it" in recorder.lines


def test_leftovers_of_pushes_go_when_they_are_old_and_what_is_not_ours_stays(inventory: Inventory) -> None:
    push(inventory)
    models = Path(inventory.root) / "models"
    broken_off = models / "store" / ("f" * 64)
    broken_off.mkdir()
    (broken_off / "model.safetensors.part").write_bytes(b"x" * 100)
    own = models / "Qwen3.6-27B"
    own.mkdir()
    (own / "config.json").write_text("{}")
    alike = models / "own-0123456789ab"
    alike.mkdir()
    (alike / "config.json").write_text("{}")
    unfinished = models / f"{FOLDER}.part"
    unfinished.mkdir()
    recorder = collected(inventory)
    assert broken_off.exists(), "it may be continued"
    assert any("a push may go on" in said for said in recorder.skipped)
    assert not unfinished.exists()
    age(models)
    collected(inventory)
    assert not broken_off.exists()
    assert own.exists()
    assert alike.exists()


def test_the_verb_plans_first_then_removes_then_has_nothing_to_do(
    inventory: Inventory, profile: Profile, tmp_path: Path
) -> None:
    old, _ = push(inventory)
    another_drafter(inventory, profile, b"2")
    push(inventory)
    age(Path(inventory.root))
    file = tmp_path / "here.toml"
    file.write_text(
        f'name = "here"\nroot = "{inventory.root}"\nservice = "ddtree-gc-{os.getpid()}"\n'
        f'[ssh]\nhost = "localhost"\n[install]\nbuild = "cpu"\n[serve]\nserved_model_name = "tiny"\n'
        f'[drafter]\nfile = "{inventory.drafter.file}"\nprofile = "{inventory.drafter.profile}"\n'
        f'[target]\npath = "{inventory.target.path}"\npush = "{inventory.target.push}"\n'
    )

    def run(*words: str) -> str:
        program = [sys.executable, "-c", "from deployer.cli.app import main; main()", "--local", "gc", str(file)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run([*program, *words], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    planned = run("--plan")
    assert f"+ gc: remove {old} (" in planned
    assert "it is what would be pushed now" in planned or "refers to it" in planned
    assert old.exists()
    assert f"+ gc: remove {old} (" in run()
    assert not old.exists()
    assert run().endswith("nothing to do\n")


def test_a_host_without_models_is_no_error(inventory: Inventory) -> None:
    assert collected(inventory).skipped == [f"{inventory.root}/models: there are no models"]


def files(*inodes: int) -> frozenset[int]:
    return frozenset(inodes)


def test_the_judgement_goes_from_references_over_folders_to_the_store() -> None:
    found = Survey(
        folders=(Folder(FOLDER, 1, files(1, 2)), Folder(OTHER, 1, files(2, 3))),
        store=(Entry("a", 1, files(1), 1e6), Entry("b", 1, files(2), 1e6), Entry("c", 1, files(3), 1e6)),
        references={OTHER: ("link /m/tiny", "/etc/ddtree/x.yaml", "process 7")},
    )
    verdicts = {verdict.path: verdict for verdict in judge(found, frozenset())}
    assert {path: verdict.keep for path, verdict in verdicts.items()} == {
        FOLDER: False,
        OTHER: True,
        "store/a": False,
        "store/b": True,
        "store/c": True,
    }
    assert verdicts[OTHER].reason == "link /m/tiny, /etc/ddtree/x.yaml and 1 more refer to it"
    wanted = {verdict.path: verdict.keep for verdict in judge(found, frozenset({FOLDER, "a"}))}
    assert all(wanted.values())
