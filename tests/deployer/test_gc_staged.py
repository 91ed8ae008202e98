"""gc of what pushes into a container without sshd left on its Proxmox host, which is a stand-in (see pct_stand_in.py)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pct_stand_in
import pytest
from material import inventory_for
from recorder import Recorder

from deployer.inventory.model import Inventory, Pct
from deployer.plan import apply
from deployer.plan.step import Plan
from deployer.push import gc, plan, staged_gc
from deployer.push.staged_gc import Needs, Staged, judge
from deployer.transport.local import LocalTransport
from deployer.transport.pct import PctTransport

DAY = 86_400.0


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PctTransport:
    node = pct_stand_in.put(tmp_path / "node", monkeypatch)
    return PctTransport(LocalTransport("kpro5"), Pct(vmid=129, stage=f"{node}/stage"), name="ct129")


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path) -> Inventory:
    return inventory_for(tmp_path, drafter)


@pytest.fixture
def stage(box: PctTransport) -> Path:
    """Left by pushes that broke off: two files, a folder of wheels, and another container's."""
    stage = Path(box.stage(""))
    (stage / "folder/torch").mkdir(parents=True)
    (stage / "folder/torch/torch.whl").write_bytes(b"w" * 300)
    (stage / ("a" * 64)).write_bytes(b"a" * 1000)
    (stage / f"{'b' * 64}.part").write_bytes(b"b" * 20)
    (stage.parent / "130").mkdir()
    (stage.parent / "130" / ("c" * 64)).write_bytes(b"of another container")
    return stage


def digest_of(inventory: Inventory) -> str:
    assert inventory.drafter.file is not None
    return hashlib.sha256(inventory.drafter.file.read_bytes()).hexdigest()


def titles(made: Plan) -> list[str]:
    return [step.title for step in made.steps[1:]]


@pytest.mark.parametrize(
    ("name", "age", "keep", "why"),
    [
        ("0" * 64, 3 * 3600, True, "it was written 3 h ago: a push may go on"),
        ("0" * 64, 3 * DAY, False, "no push has gone on with it for 3 days"),
        ("folder", 2 * DAY, False, "no push has gone on with it for 2 days"),
        ("f" * 64, 3 * DAY, True, "it is what would be pushed now, and is continued then"),
        (f"{'f' * 64}.part", 3 * DAY, True, "it is what would be pushed now, and is continued then"),
        ("e" * 64, 3 * DAY, False, "the container has it"),
        ("e" * 64, 60, True, "it was written 0 h ago: a push may go on"),
    ],
)
def test_what_no_push_goes_on_with_goes(name: str, age: float, keep: bool, why: str) -> None:
    needs = Needs(wanted=frozenset({"f" * 64, "e" * 64}), there=frozenset({"e" * 64}))
    assert judge(Staged(name, 1, age), needs) == (keep, why)


def test_a_young_one_stays_and_the_plan_says_so(box: PctTransport, stage: Path, inventory: Inventory) -> None:
    made = gc.plan(inventory, box)
    assert made.pending == ()
    assert titles(made) == [
        f"keep kpro5:{stage}/{'a' * 64} (1.00 kB)",
        f"keep kpro5:{stage}/{'b' * 64}.part (20 bytes)",
        f"keep kpro5:{stage}/folder (300 bytes)",
    ]


def test_what_is_old_goes_with_its_folder_and_a_second_run_finds_nothing(
    box: PctTransport, stage: Path, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_gc, "YOUNG", 0.0)
    wanted = stage / digest_of(inventory)
    wanted.write_bytes(b"the drafter, or a part of it")
    made = gc.plan(inventory, box)
    assert wanted.exists(), "a plan changes nothing"
    assert len(made.pending) == 3
    apply.run(made, Recorder())
    assert [path.name for path in stage.iterdir()] == [wanted.name]
    assert gc.plan(inventory, box).pending == ()
    wanted.unlink()
    (stage / ("a" * 64)).write_bytes(b"a")
    apply.run(gc.plan(inventory, box), Recorder())
    assert not stage.exists()
    assert [path.name for path in stage.parent.iterdir()] == ["130"], "another container's is its own"


def test_what_the_container_has_by_now_is_not_continued(
    box: PctTransport, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_gc, "YOUNG", 0.0)
    apply.run(plan.plan(inventory, box), Recorder())
    left = Path(box.stage(digest_of(inventory)))
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a part that a push over sshd made needless")
    [step] = gc.plan(inventory, box).pending
    assert step.reason == "the container has it"
    apply.run(gc.plan(inventory, box), Recorder())
    assert not left.parent.parent.exists()


def test_one_that_a_push_went_on_with_since_the_plan_is_left_alone(
    box: PctTransport, stage: Path, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_gc, "YOUNG", 0.0)
    made, recorder = gc.plan(inventory, box), Recorder()
    monkeypatch.setattr(staged_gc, "YOUNG", DAY)
    apply.run(made, recorder)
    assert (stage / ("a" * 64)).exists()
    assert sum("left alone: it was written 0 h ago" in line for line in recorder.lines) == 3


def test_a_host_that_files_reach_directly_has_no_stage(inventory: Inventory) -> None:
    assert len(gc.plan(inventory, LocalTransport()).steps) == 1
