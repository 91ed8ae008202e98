"""Push: what is sent, what is not sent again, and what a broken line or a change underneath leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from material import REPOSITORY, inventory_for, write_checkpoint
from recorder import Recorder
from sshd import Servers

from deployer.checkpoint import shapes
from deployer.checkpoint.profiles import Profile
from deployer.errors import PreflightError, TransferError
from deployer.inventory.model import Inventory, Ssh
from deployer.plan import apply
from deployer.push import plan, published
from deployer.push.file import Sending, offset, send
from deployer.push.folder import differs, send_folder
from deployer.transport.local import LocalTransport
from deployer.transport.shell import ShellTransport
from deployer.transport.ssh import SshTransport


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path) -> Inventory:
    target = tmp_path / "target"
    (target / "deep").mkdir(parents=True)
    (target / "config.json").write_text(json.dumps({"num_hidden_layers": 8}))
    write_checkpoint(target / "model.safetensors", {"model.embed_tokens.weight": (320, 128)})
    (target / "deep" / "more.txt").write_text("more")
    (target / ".hidden").write_text("not a part of the model")
    return inventory_for(tmp_path, drafter, push=str(target))


def pushed(inventory: Inventory, transport: ShellTransport) -> Recorder:
    recorder = Recorder()
    apply.run(plan.plan(inventory, transport), recorder)
    return recorder


def test_a_push_makes_readable_immutable_folders_and_a_second_one_sends_nothing(inventory: Inventory) -> None:
    local, root = LocalTransport(), Path(inventory.root)
    os.chmod(inventory.drafter.file, 0o600)
    first = pushed(inventory, local)
    assert len(first.ended) == 6
    folder = Path(published.drafter_dir(inventory, local))
    assert folder.parent == root / "models"
    assert (root / "models/tiny-hybrid").resolve() == folder
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "model.safetensors": 0o644,
        "config.json": 0o644,
        ".sha256sums": 0o644,
    }
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", ".sha256sums"], cwd=folder, check=True)
    assert (folder / "model.safetensors").read_bytes() == inventory.drafter.file.read_bytes()
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    target = Path(inventory.target.path)
    assert target.resolve() == Path(published.target_dir(inventory, local))
    assert (target / "deep/more.txt").read_text() == "more"
    assert not (target / ".hidden").exists()
    second = plan.plan(inventory, local)
    assert second.pending == ()
    assert second.steps[0].reason == "nothing to send: the SHA-256 is equal on both ends"
    assert not list(root.rglob("*.part"))


def test_another_config_is_another_folder_but_sends_no_weights(inventory: Inventory, tmp_path: Path) -> None:
    local = LocalTransport()
    pushed(inventory, local)
    before = published.drafter_dir(inventory, local)
    profile = tmp_path / "tiny-hybrid.toml"
    profile.write_text((REPOSITORY / "inventory/profiles/tiny-hybrid.toml").read_text().replace("1e6", "2e6"))
    changed = inventory.model_copy(update={"drafter": inventory.drafter.model_copy(update={"profile": str(profile)})})
    steps = plan.plan(changed, local).steps
    assert [step.needed for step in steps] == [False, True, True, False, False, False]
    apply.run(plan.plan(changed, local), Recorder())
    after = published.drafter_dir(changed, local)
    assert after != before
    assert Path(before, "config.json").exists(), "the older folder stays for rollback"


def test_damage_on_the_host_is_found_and_repaired(inventory: Inventory) -> None:
    local = LocalTransport()
    pushed(inventory, local)
    weights = Path(published.drafter_dir(inventory, local), "model.safetensors")
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    assert [step.needed for step in plan.plan(inventory, local).steps[:3]] == [True, True, False]
    pushed(inventory, local)
    assert weights.read_bytes() == data


def test_a_checkpoint_that_changed_since_the_push_is_another_folder(inventory: Inventory) -> None:
    local = LocalTransport()
    planned = published.drafter_dir(inventory, local)
    pushed(inventory, local)
    assert published.drafter_dir(inventory, local) == planned
    data = inventory.drafter.file.read_bytes()
    inventory.drafter.file.write_bytes(data[:-1] + b"!")
    assert not Path(published.drafter_dir(inventory, local)).exists()


def test_the_folders_are_known_without_the_laptops_checkpoint(inventory: Inventory) -> None:
    local = LocalTransport()
    pushed(inventory, local)
    expected = published.drafter_dir(inventory, local)
    inventory.drafter.file.unlink()
    assert published.drafter_dir(inventory, local) == expected
    shutil.rmtree(inventory.root)
    with pytest.raises(PreflightError, match="push it"):
        published.drafter_dir(inventory, local)


def test_a_folder_of_the_hosts_own_is_not_replaced(inventory: Inventory) -> None:
    Path(inventory.target.path).mkdir(parents=True)
    with pytest.raises(PreflightError, match="not pushed from here"):
        plan.plan(inventory, LocalTransport())


def test_a_full_disk_is_refused_before_the_first_byte(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "RESERVE", 1 << 60)
    with pytest.raises(PreflightError, match="not enough room"):
        plan.plan(inventory, LocalTransport())
    assert not Path(inventory.root).exists()


def big(tmp_path: Path, size: int = 24 << 20) -> Sending:
    source = tmp_path / "big.bin"
    block = hashlib.sha256(b"seed").digest() * 32768
    source.write_bytes(b"".join(block[i:] + block[:i] for i in range(size // len(block))))
    (tmp_path / "there").mkdir(exist_ok=True)
    sha = hashlib.sha256(source.read_bytes()).hexdigest()
    return Sending(source=source, sha256=sha, remote=str(tmp_path / "there" / "big.bin"))


def over(servers: Servers, host: str = "box") -> SshTransport:
    return SshTransport(Ssh(host=host, config_file=servers.config, connect_timeout=5))


@pytest.mark.parametrize("by_ssh", [True, False])
def test_a_cut_line_is_continued_where_it_broke(servers: Servers, tmp_path: Path, by_ssh: bool) -> None:
    box, sending, cuts = over(servers), big(tmp_path), [6 << 20, 14 << 20]

    class Cutting(Recorder):
        def bytes(self, done: int, total: int) -> None:
            super().bytes(done, total)
            if cuts and done >= cuts[0]:
                cuts.pop(0)
                servers.box.cut()

    recorder = Cutting()
    send(box, sending, recorder, by_ssh=by_ssh)
    assert not cuts or by_ssh, "the line was cut twice"
    assert Path(sending.remote).read_bytes() == sending.source.read_bytes()
    assert not Path(sending.part).exists()
    if not by_ssh:
        assert sum("continuing at" in line for line in recorder.lines) == 2
    box.close()


def test_a_part_with_another_beginning_is_not_continued(servers: Servers, tmp_path: Path) -> None:
    box, sending = over(servers), big(tmp_path, 2 << 20)
    data = sending.source.read_bytes()
    Path(sending.part).write_bytes(data[:1000])
    assert offset(box, sending) == 1000
    Path(sending.part).write_bytes(b"x" + data[1:1000])
    assert offset(box, sending) == 0
    Path(sending.part).write_bytes(data + b"longer")
    assert offset(box, sending) == 0
    send(box, sending, Recorder(), by_ssh=False)
    assert Path(sending.remote).read_bytes() == data
    box.close()


def test_a_file_that_changes_while_it_is_sent_never_gets_its_name(tmp_path: Path) -> None:
    sending = big(tmp_path, 1 << 20)
    sending.source.write_bytes(sending.source.read_bytes()[:-1] + b"!")
    with pytest.raises(TransferError, match="arrived damaged"):
        send(LocalTransport(), sending, Recorder(), by_ssh=False)
    assert list(Path(sending.remote).parent.iterdir()) == []


@pytest.mark.parametrize("local", [True, False])
def test_a_folder_is_made_equal_and_only_differences_are_sent(servers: Servers, tmp_path: Path, local: bool) -> None:
    transport: ShellTransport = LocalTransport() if local else over(servers)
    here, there = tmp_path / "wheels", tmp_path / "there" / "wheels"
    (here / "sub").mkdir(parents=True)
    for name in ("a.whl", "b+cpu.whl", "sub/c d.whl"):
        (here / name).write_bytes(name.encode() * 1000)
        os.chmod(here / name, 0o600)
    assert differs(transport, here, str(there)) == ("a.whl", "b+cpu.whl", "sub/c d.whl")
    send_folder(transport, here, str(there), Recorder())
    assert differs(transport, here, str(there)) == ()
    assert (there / "sub/c d.whl").stat().st_mode & 0o777 == 0o644
    assert (there / "sub").stat().st_mode & 0o777 == 0o755
    before = (there / "a.whl").stat().st_ino
    (there / "b+cpu.whl").write_bytes(b"damaged" * 100)
    (there / "extra").write_text("of the host")
    assert differs(transport, here, str(there)) == ("b+cpu.whl",)
    send_folder(transport, here, str(there), Recorder())
    assert (there / "b+cpu.whl").read_bytes() == (here / "b+cpu.whl").read_bytes()
    assert (there / "a.whl").stat().st_ino == before
    assert sorted(path.name for path in there.iterdir()) == ["a.whl", "b+cpu.whl", "extra", "sub"]
    transport.close()


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_asked_of_the_host(
    inventory: Inventory, profile: Profile
) -> None:
    tensors = shapes.tensors(profile.shapes)
    tensors["fc.weight"] = (128, 256)
    write_checkpoint(inventory.drafter.file, tensors)
    with pytest.raises(PreflightError, match=r"fc\.weight: expected shape \[128, 384\], found \[128, 256\]"):
        plan.plan(inventory, LocalTransport())
