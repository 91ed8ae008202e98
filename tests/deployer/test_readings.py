"""What is said while files are read to the last byte, and what is not read a second time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from material import inventory_for, write_model
from recorder import Recorder

from deployer.checkpoint import content, model_folder
from deployer.cli.readings import Readings
from deployer.inventory.model import Inventory
from deployer.plan import apply, reading
from deployer.push import digest, plan, published, remote
from deployer.transport.local import LocalTransport


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_long_reading_is_said_with_rate_and_time_left_and_a_short_one_is_not() -> None:
    clock, lines = Clock(), list[str]()
    readings = Readings(lines.append, clock)
    for second in range(9):
        clock.now = 100.0 + second
        readings("/models/target", second * 1_500_000_000, 54_000_000_000)
    readings("on box", 0, 3_000_000_000)
    clock.now += 1.0
    readings("on box", 3_000_000_000, 3_000_000_000)
    assert lines == [
        "reading /models/target: 3.00 GB of 54.00 GB, 1.50 GB/s, 34 s left",
        "reading /models/target: 10.50 GB of 54.00 GB, 1.50 GB/s, 29 s left",
    ]


def test_the_files_of_a_model_are_one_reading_whether_remembered_or_not(tmp_path: Path) -> None:
    folder, told = write_model(tmp_path / "model"), list[tuple[str, int, int]]()
    for _ in range(2):
        told.clear()
        with reading.watched(lambda *words: told.append(words)):
            members = model_folder.validated(folder)
        total = sum(member.size for member in members)
        assert {what for what, _, _ in told} == {str(folder)}
        assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
        assert told[-1][1:] == (total, total)


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path) -> Inventory:
    return inventory_for(tmp_path, drafter, push=str(write_model(tmp_path / "target")))


def read_there(inventory: Inventory, *, verify: bool = False) -> int:
    """How many bytes the host reads when a push looks what is there."""
    local, told = LocalTransport(), list[tuple[str, int, int]]()
    with reading.watched(lambda *words: told.append(words)):
        assert plan.plan(inventory, local, verify=verify).pending == ()
    return max((total for what, _, total in told if what == "on local"), default=0)


def test_what_arrived_is_remembered_and_the_next_push_reads_only_what_it_does_not_know(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SMALL", 10_000)
    apply.run(plan.plan(inventory, LocalTransport()), Recorder())
    size = inventory.drafter.file.stat().st_size
    assert 0 < read_there(inventory) < 10_000, "small files come in one stream and are read once more"
    assert read_there(inventory) == 0
    assert read_there(inventory, verify=True) > size


def test_a_change_that_keeps_size_and_time_is_noticed_on_both_ends(inventory: Inventory, tmp_path: Path) -> None:
    local = LocalTransport()
    apply.run(plan.plan(inventory, local), Recorder())
    assert read_there(inventory) >= 0
    weights = Path(published.drafter_dir(inventory, local), "model.safetensors")
    before, data = weights.stat(), weights.read_bytes()
    weights.write_bytes(data[:-1] + b"!")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert plan.plan(inventory, local).pending != ()
    copy = tmp_path / "copy"
    shutil.copyfile(inventory.drafter.file, copy)
    first, before = content.read(copy).sha256, copy.stat()
    copy.write_bytes(data[:-1] + b"!")
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content.read(copy).sha256 != first


def test_links_to_one_file_are_read_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * 1000)
    os.link(one, two)
    told = list[tuple[str, int, int]]()
    seen = {str(path): digest.Seen(remote.identity(str(path)), 1000, "") for path in (one, two)}
    with reading.watched(lambda *words: told.append(words)):
        found = digest.read(LocalTransport(), seen, str(tmp_path / "memory.json"))
    assert set(found.values()) == {digest.of_file(one)}
    assert {total for _, _, total in told} == {1000}


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text("{")
    assert remote.recall(str(tmp_path / "memory.json")) == {}
