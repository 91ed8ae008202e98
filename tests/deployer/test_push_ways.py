"""How files are sent: by which rsync or without, at what pace, what is said meanwhile; and whole models with odd names."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from material import inventory_for, write_model
from recorder import Recorder
from sshd import Servers

from deployer.errors import PreflightError
from deployer.facts import disk
from deployer.inventory.model import Inventory, Ssh
from deployer.plan import apply
from deployer.push import plan, published, rsync
from deployer.push.file import Sending, send
from deployer.push.pace import Meter, Throttled, left
from deployer.push.rsync import Rsync
from deployer.transport.local import LocalTransport
from deployer.transport.ssh import SshTransport

pytestmark = pytest.mark.slow

# As `rsync --version` begins on Debian 12, macOS 14, macOS 15, and with a development version.
DEBIAN = "rsync  version 3.2.7  protocol version 31\nCopyright (C) 1996-2022 by Andrew Tridgell and others.\n"
MACOS_14 = "rsync  version 2.6.9  protocol version 29\nCopyright (C) 1996-2006 by Andrew Tridgell and others.\n"
MACOS_15 = "openrsync: protocol version 29\nrsync version 2.6.9 compatible\n"
NEWER = "rsync  version v3.4.1  protocol version 32\n"


@pytest.mark.parametrize(
    ("text", "named", "here", "there"),
    [
        (DEBIAN, "rsync 3.2.7", True, True),
        (NEWER, "rsync 3.4.1", True, True),
        ("rsync  version 3.0.9  protocol version 30\n", "rsync 3.0.9", False, True),
        (MACOS_14, "rsync 2.6.9", False, False),
        (MACOS_15, "openrsync", False, False),
    ],
)
def test_versions_are_read_and_judged(text: str, named: str, here: bool, there: bool) -> None:
    parsed = Rsync.parse(text)
    assert parsed is not None
    assert str(parsed) == named
    assert (parsed.at_least(rsync.OLDEST_HERE), parsed.at_least(rsync.OLDEST_THERE)) == (here, there)


def test_what_is_no_rsync_has_no_version() -> None:
    assert Rsync.parse("sh: 1: rsync: not found") is None


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path) -> Inventory:
    return inventory_for(tmp_path, drafter, push=str(write_model(tmp_path / "target")))


def rsync_stand_in(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the laptop's rsync: it only tells its version."""
    folder.mkdir()
    program = folder / "rsync"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("text", [MACOS_14, MACOS_15, DEBIAN], ids=["macos 14", "macos 15", "debian"])
def test_a_model_goes_by_the_machines_ssh_whatever_its_rsync_is_and_the_plan_says_so(
    servers: Servers, inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    rsync_stand_in(tmp_path / "mac", text, monkeypatch)
    monkeypatch.setattr(plan, "WORTHWHILE", 1000)
    box = SshTransport(Ssh(host="direct", config_file=servers.config))
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    named = version.split()[0].rstrip(",").replace("_", " ")
    assert named.startswith("OpenSSH ")
    assert f"by {named}, at most 2.5 MB/s" in plan.plan(inventory, box, limit=2.5).steps[0].reason
    assert rsync.usable(box) == (text is DEBIAN and bool(shutil.which("rsync", path="/usr/bin:/bin")))
    box.close()


def test_without_an_ssh_program_the_open_connection_is_used(
    servers: Servers, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "WORTHWHILE", 1000)
    box = SshTransport(Ssh(host="direct", config_file=servers.config))
    box.connect()
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    assert "over the open connection: this machine has no ssh program" in plan.plan(inventory, box).steps[0].reason
    box.close()


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_throttled_file_takes_the_time_that_its_rate_asks_for_and_a_pause_is_no_credit() -> None:
    clock = Clock()
    slow = Throttled(io.BytesIO(b"x" * 10_000), 1000.0, clock, clock.sleep)
    sizes = [len(slow.read(4000)) for _ in range(20)]
    assert set(sizes) == {250}, "small pieces, so that a slow line still moves"
    assert clock.now == pytest.approx(100 + 19 * 0.25)
    clock.sleep(60)
    before = clock.now
    while slow.read(4000):
        pass
    assert clock.now - before == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize("by_ssh", [True, False], ids=["ssh", "channel"])
def test_a_limit_holds_on_both_ways(servers: Servers, tmp_path: Path, by_ssh: bool) -> None:
    source = tmp_path / "big.bin"
    source.write_bytes(os.urandom(3_000_000))
    from deployer.push import digest

    sending = Sending(source, digest.of_file(source), f"{tmp_path}/there/big.bin")
    box, start = SshTransport(Ssh(host="direct", config_file=servers.config)), time.monotonic()
    send(box, sending, Recorder(), by_ssh=by_ssh, limit=1.5)
    assert time.monotonic() - start > 1.5, "3 MB at 1.5 MB/s"
    assert Path(sending.remote).read_bytes() == source.read_bytes()
    box.close()


def test_several_files_are_one_progress_with_rate_and_time_left() -> None:
    clock, recorder = Clock(), Recorder()
    meter = Meter(recorder, total=10_000_000_000, clock=clock)
    meter.next_file(0)
    for _ in range(5):
        clock.sleep(10)
        meter.bytes(int((clock.now - 110) * 50e6), 3_000_000_000)
    meter.next_file(3_000_000_000)
    meter.bytes(1_000_000_000, 7_000_000_000)
    clock.sleep(25)
    meter.bytes(3_500_000_000, 7_000_000_000)
    assert recorder.amounts[-1] == (6_500_000_000, 10_000_000_000)
    assert recorder.lines == [
        "1.00 GB of 10.00 GB, 50.00 MB/s, 3 min 00 s left",
        "2.00 GB of 10.00 GB, 50.00 MB/s, 2 min 40 s left",
        "6.50 GB of 10.00 GB, 100.00 MB/s, 35 s left",
    ], "what the second file had from before is not taken for speed"


def test_the_time_left_is_said_in_fitting_units() -> None:
    assert [left(count, 10.0) for count in (10, 605, 72_000)] == ["1 s left", "1 min 00 s left", "2 h 00 min left"]


ODD = ("sub dir/new\nline.txt", "ünï-重み.txt", "-dash", "*", "quote'\"$(x)", "back\\slash", "empty")


@pytest.mark.parametrize("over_ssh", [True, False], ids=["ssh", "local"])
def test_a_whole_model_with_shards_links_and_odd_names_becomes_one_folder_with_its_list_of_hashes(
    request: pytest.FixtureRequest, inventory: Inventory, tmp_path: Path, over_ssh: bool
) -> None:
    here = inventory.target.push
    assert here is not None
    (here / "sub dir").mkdir()
    for name in ODD:
        (here / name).write_text("" if name == "empty" else name)
    (here / "same again").write_text("back\\slash")
    (here / "linked.txt").symlink_to("tokenizer.json")
    for number in range(500):
        (here / f"many {number}.txt").write_text(f"{number} " * 20)
    if over_ssh:
        servers: Servers = request.getfixturevalue("servers")
        transport: SshTransport | LocalTransport = SshTransport(Ssh(host="direct", config_file=servers.config))
    else:
        transport = LocalTransport()
    apply.run(plan.plan(inventory, transport), Recorder())
    folder = Path(published.target_dir(inventory, transport))
    names = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()}
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        *names,
        ".sha256sums",
    }
    assert all((folder / name).read_bytes() == (here / name).read_bytes() for name in names)
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")} == {0o644, 0o755}
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", ".sha256sums"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert checked.stdout.count(": OK") == len(names)
    assert plan.plan(inventory, transport).pending == ()
    assert not list(Path(inventory.root).rglob("*.part"))
    transport.close()


def test_one_changed_shard_is_another_folder_and_sends_that_shard_only(inventory: Inventory) -> None:
    local, here = LocalTransport(), inventory.target.push
    assert here is not None
    apply.run(plan.plan(inventory, local), Recorder())
    before = Path(published.target_dir(inventory, local))
    shard = here / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    planned = plan.plan(inventory, local)
    assert "1 of 6 are not in the host's store" in planned.pending[0].reason
    apply.run(planned, Recorder())
    after = Path(published.target_dir(inventory, local))
    assert after != before
    assert (after / "tokenizer.json").stat().st_ino == (before / "tokenizer.json").stat().st_ino
    assert Path(inventory.target.path).resolve() == after
    assert before.is_dir(), "the older one stays as it was, for rollback"


def test_what_broke_off_counts_as_room_that_is_taken_already(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was nearly filled by a push which broke off has to take the rest of it."""
    local = LocalTransport()
    apply.run(plan.plan(inventory, local), Recorder())
    folder = Path(published.drafter_dir(inventory, local))
    stored = next(Path(inventory.root, "models/store").glob("*/model.safetensors"))
    shutil.rmtree(folder)
    stored.rename(f"{stored}.part")
    size = Path(f"{stored}.part").stat().st_size
    monkeypatch.setattr(plan, "RESERVE", 0)
    monkeypatch.setattr(disk, "read", lambda *_: disk.Disk("/", 1 << 40, size // 2, None))
    planned = plan.plan(inventory, local)
    assert "of it broken off and to be continued" in planned.pending[0].reason
    os.truncate(f"{stored}.part", 10)
    with pytest.raises(PreflightError, match="not enough room for"):
        plan.plan(inventory, local)


def test_a_published_model_is_mended_file_by_file_and_never_absent(inventory: Inventory) -> None:
    local = LocalTransport()
    apply.run(plan.plan(inventory, local), Recorder())
    folder = Path(published.target_dir(inventory, local))
    identity = folder.stat().st_ino
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text("{}")
    apply.run(plan.plan(inventory, local), Recorder())
    assert folder.stat().st_ino == identity
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert "text_config" in (folder / "config.json").read_text()
    assert plan.plan(inventory, local).pending == ()
