"""A container reached by `pct` alone. The Proxmox host is this machine, with stand-ins for pct, lxc-info and nsenter:
what they run is run here, so that quoting, streams, exit codes and files are real. The lab's tests have containers.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pct_stand_in
import planted
import pytest
from material import inventory_for, write_checkpoint
from recorder import Recorder
from sshd import free_port

from deployer.errors import PreflightError, TransferError
from deployer.facts.finding import Level
from deployer.facts.stage import stage_findings
from deployer.inventory.model import Inventory, Pct
from deployer.push import staged
from deployer.push.file import Sending
from deployer.push.folder import send_folder
from deployer.serve import uninstall
from deployer.transport.faults import LineBroken
from deployer.transport.local import LocalTransport
from deployer.transport.open import opened
from deployer.transport.pct import SMALL, PctTransport
from deployer.transport.shell import CommandError

NASTY = """it's "quoted" $HOME `id` \\ \\n * ; & | < > ( ) # !
second	line %s {a,b} ~"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins; `state` in it is the container's."""
    return pct_stand_in.put(tmp_path / "node", monkeypatch)


@pytest.fixture
def box(node: Path) -> PctTransport:
    return PctTransport(LocalTransport("kpro5"), Pct(vmid=129, stage=f"{node}/stage"), name="ct129")


def leftovers(node: Path) -> list[str]:
    return sorted(
        path.name for path in node.iterdir() if path.name not in {"pct", "nsenter", "lxc-info", "state", "log"}
    )


@pytest.mark.parametrize("sudo", [False, True])
def test_a_command_arrives_as_it_was_meant_through_three_shells(box: PctTransport, sudo: bool) -> None:
    assert box.run(f"printf %s {shlex.quote(NASTY)}", sudo=sudo).stdout == NASTY
    script = f"import sys\nsys.stdout.write({NASTY!r})"
    assert box.run(shlex.join([sys.executable, "-c", script]), sudo=sudo).stdout == NASTY


@pytest.mark.parametrize("code", [0, 1, 2, 42, 126, 255])
def test_exit_code_and_both_streams_are_the_commands_own(box: PctTransport, code: int) -> None:
    result = box.run(f"echo out; echo err >&2; exit {code}", check=False)
    assert (result.returncode, result.stdout, result.stderr) == (code, "out\n", "err\n")


def test_a_failure_names_the_command_and_not_its_wrapping(box: PctTransport) -> None:
    with pytest.raises(CommandError, match="failed with 7: no such thing") as caught:
        box.run("echo no such thing >&2; exit 7")
    assert caught.value.where == "ct129: echo no such thing >&2; exit 7"


def test_the_nodes_variables_stay_outside(box: PctTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    variables = box.run("env").stdout
    assert "LC_ALL" not in variables
    assert "HOME=/root\n" in variables


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 300_000])
def test_input_of_every_size_arrives_whole_and_leaves_nothing(box: PctTransport, node: Path, size: int) -> None:
    data = os.urandom(size)
    assert box.run("wc -c; cat >/dev/null", stdin=data).stdout.strip() == str(size)
    target = node.parent / "file"
    box.write(data, str(target), mode=0o640)
    assert target.read_bytes() == data
    assert target.stat().st_mode & 0o777 == 0o640
    assert leftovers(node) == []


def test_an_input_that_never_ends_hangs_nothing(
    box: PctTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `pct exec ... cat` was reported to do: the end of the input does not come through."""
    monkeypatch.setenv("ENDLESS", str(tmp_path))
    try:
        assert box.run("cat | wc -c", stdin=b"x" * SMALL, timeout=30).stdout == f"{SMALL}\n"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("size", [100, SMALL + 100])
def test_a_secret_given_as_input_is_in_no_command_line(box: PctTransport, node: Path, size: int) -> None:
    data = planted.SECRET.encode() + b"x" * size
    assert box.run("cat", stdin=data).stdout.startswith(planted.SECRET)
    assert planted.SECRET not in (node / "log").read_text()


def test_a_command_runs_while_its_input_is_held_open_and_hears_its_end(box: PctTransport, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    heard = tmp_path / "heard"
    command = f"touch {heard}; cat; echo ended >{heard}"
    with os.fdopen(reading, "rb", buffering=0) as source:
        holding = threading.Thread(target=box.hold, args=(command, source))
        holding.start()
        deadline = time.monotonic() + 30
        while not heard.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert heard.read_text() == ""
        os.close(writing)
        holding.join(30)
    assert heard.read_text() == "ended\n"


def test_a_command_that_does_not_read_its_input_ends_all_the_same(box: PctTransport) -> None:
    assert box.run("exit 3", stdin=b"x" * SMALL, check=False).returncode == 3
    assert box.run("exit 3", stdin=b"x" * 300_000, check=False).returncode == 3


def test_a_stream_comes_line_by_line_and_its_failure_is_raised(box: PctTransport) -> None:
    lines = box.stream("echo a; echo b >&2; sleep 0.3; echo c; exit 4")
    assert [next(lines), next(lines), next(lines)] == ["a", "b", "c"]
    with pytest.raises(CommandError, match="failed with 4"):
        next(lines)


@pytest.mark.parametrize(
    ("vmid", "state", "said", "remedy"),
    [
        (129, "stopped", "container 129 is stopped", "pct start 129"),
        (130, "running", "no container 130", "pct list"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_asked(
    node: Path, vmid: int, state: str, said: str, remedy: str
) -> None:
    (node / "state").write_text(f"{state}\n")
    box = PctTransport(LocalTransport("kpro5"), Pct(vmid=vmid), name="ct129")
    with pytest.raises(PreflightError, match=said) as caught:
        box.connect()
    assert remedy in caught.value.remedy
    assert caught.value.where == "kpro5"


def test_a_node_without_pct_is_no_proxmox_host(box: PctTransport, node: Path) -> None:
    (node / "pct").unlink()
    with pytest.raises(PreflightError, match="kpro5 has no pct"):
        box.connect()


def test_a_container_that_stops_under_a_command_is_a_broken_line(box: PctTransport, node: Path) -> None:
    box.connect()
    (node / "state").write_text("stopped\n")
    with pytest.raises(LineBroken, match="went away: status: stopped") as caught:
        box.run("true", check=False)
    assert "pct start 129" in caught.value.remedy


def test_a_port_inside_is_opened_here_by_way_of_its_network(box: PctTransport) -> None:
    port = free_port()
    with box.forward("127.0.0.1", port) as here:
        with socket.create_connection(("127.0.0.1", here)) as client:
            client.settimeout(20)
            assert client.recv(100) == b"", "nobody listens there yet"
        with (
            socket.create_server(("127.0.0.1", port)) as listener,
            socket.create_connection(("127.0.0.1", here)) as client,
        ):
            client.settimeout(20)
            client.sendall(b"q" * 200_000)
            client.shutdown(socket.SHUT_WR)
            listener.settimeout(20)
            served, _ = listener.accept()
            with served, served.makefile("rb") as asked:
                assert len(asked.read()) == 200_000
                served.sendall(b"a" * 200_000)
            with client.makefile("rb") as answered:
                assert len(answered.read()) == 200_000


def test_a_node_that_cannot_enter_the_network_says_so(box: PctTransport, node: Path) -> None:
    (node / "nsenter").write_text("#!/bin/sh\necho 'nsenter: reassociate failed: denied' >&2\nexit 1\n")
    with pytest.raises(PreflightError, match="reassociate failed"), box.forward("127.0.0.1", 1):
        pass


class TestPush:
    @pytest.fixture
    def sending(self, tmp_path: Path) -> Sending:
        source = tmp_path / "it's a drafter"
        source.write_bytes(os.urandom(3_000_000))
        sha = subprocess.run(["sha256sum", source], capture_output=True, text=True, check=True).stdout.lstrip("\\")[:64]
        return Sending(source, sha, f"{tmp_path}/ct/models/drafter")

    def test_a_file_is_staged_brought_in_checked_and_the_stage_goes(
        self, box: PctTransport, node: Path, sending: Sending
    ) -> None:
        seen = Recorder()
        staged.send(box, sending, seen, by_ssh=False)
        assert Path(sending.remote).read_bytes() == sending.source.read_bytes()
        assert Path(sending.remote).stat().st_mode & 0o777 == 0o644
        assert not Path(sending.part).exists()
        assert list((node / "stage/129").iterdir()) == []
        assert any("pct push of it's a drafter, 3.00 MB" in line for line in seen.lines)
        staged.clear(box)
        assert leftovers(node) == []

    def test_a_stage_that_broke_off_is_continued(self, box: PctTransport, node: Path, sending: Sending) -> None:
        part = node / f"stage/129/{sending.sha256}.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(sending.source.read_bytes()[:2_000_000])
        seen = Recorder()
        staged.send(box, sending, seen, by_ssh=False)
        assert any("continuing at 2000000 of 3000000" in line for line in seen.lines)
        assert sum(1 for done, _ in seen.amounts if done <= 2_000_000) == 0
        assert Path(sending.remote).read_bytes() == sending.source.read_bytes()

    def test_a_whole_stage_is_not_sent_again(self, box: PctTransport, node: Path, sending: Sending) -> None:
        stage = node / f"stage/129/{sending.sha256}"
        stage.parent.mkdir(parents=True)
        stage.write_bytes(sending.source.read_bytes())
        seen = Recorder()
        staged.send(box, sending, seen, by_ssh=False)
        assert seen.amounts == []
        assert Path(sending.remote).exists()

    def test_a_full_container_is_named_and_the_stage_is_kept(
        self, box: PctTransport, node: Path, sending: Sending, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FULL", "1")
        with pytest.raises(TransferError, match="the disk is full while sending it's a drafter") as caught:
            staged.send(box, sending, Recorder(), by_ssh=False)
        assert caught.value.where == f"ct129:{sending.part}"
        assert (node / f"stage/129/{sending.sha256}").exists()
        assert not Path(sending.remote).exists()

    def test_what_changes_on_its_way_gets_no_name(
        self, box: PctTransport, node: Path, sending: Sending, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damaging = pct_stand_in.PCT.replace('cat "$3" >"$4"', 'head -c 1000 "$3" >"$4"')
        (node / "pct").write_text(damaging)
        with pytest.raises(TransferError, match="arrived damaged"):
            staged.send(box, sending, Recorder(), by_ssh=False)
        assert list(Path(sending.remote).parent.iterdir()) == []

    def test_a_folder_goes_to_the_node_at_once_and_in_file_by_file(self, box: PctTransport, tmp_path: Path) -> None:
        local, remote = tmp_path / "wheels", tmp_path / "ct/wheels"
        (local / "sub").mkdir(parents=True)
        (local / "a b.whl").write_bytes(b"a" * 100_000)
        (local / "sub/c.whl").write_bytes(b"c" * 10)
        send_folder(box, local, str(remote), Recorder())
        assert (remote / "a b.whl").read_bytes() == b"a" * 100_000
        assert (remote / "sub/c.whl").read_bytes() == b"c" * 10
        assert not Path(box.stage("folder")).exists()

    def test_a_node_without_room_is_refused_before_a_byte_is_sent_but_for_what_lies_there(
        self, box: PctTransport, node: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (node / "df").write_text(
            '#!/bin/sh\ncase "$*" in *-B1*) row="x 1000000000 0 400000000 0% /" ;; *) row="x 0 0 0 - /" ;; esac\n'
            'echo "Filesystem header"; echo "$row"\n'
        )
        (node / "df").chmod(0o755)
        sha = "ab" * 32
        staged.check_room(box, [(sha, 100_000_000), ("cd" * 32, 90_000_000)])
        with pytest.raises(PreflightError, match="on the Proxmox host") as caught:
            staged.check_room(box, [(sha, 200_000_000)])
        assert caught.value.where == f"kpro5:{node}/stage/129/"
        part = node / f"stage/129/{sha}.part"
        part.parent.mkdir(parents=True)
        part.touch()
        os.truncate(part, 100_000_000)
        staged.check_room(box, [(sha, 200_000_000)])
        found = {finding.subject: finding for finding in stage_findings(box, 200_000_000)}
        assert found["stage"].level is Level.FAIL
        assert found["stage's python"].level is Level.OK

    def test_uninstall_removes_what_a_push_that_broke_off_left_on_the_node(
        self, box: PctTransport, node: Path, tmp_path: Path
    ) -> None:
        drafter = write_checkpoint(tmp_path / "drafter.safetensors", {"fc.weight": (2, 2)})
        inventory = inventory_for(tmp_path, drafter)
        assert uninstall.plan(inventory, box).steps[-1].reason == "nothing of ours is on kpro5"
        part = node / "stage/129/abc.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"half of it")
        step = uninstall.plan(inventory, box).steps[-1]
        assert (step.title, step.reason) == ("stage", f"a push broke off: kpro5:{node}/stage/129")
        assert step.action is not None
        step.action(Recorder())
        assert leftovers(node) == []

    def test_a_plan_says_which_way_its_files_go(self, box: PctTransport) -> None:
        assert staged.way(box).why == "staged on kpro5 (copied on this machine), then pct push into container 129"
        assert staged.small_way(box).why == "over kpro5, by pct push into container 129"


def test_an_inventory_with_pct_opens_the_container_and_not_the_node(node: Path, tmp_path: Path) -> None:
    drafter = write_checkpoint(tmp_path / "drafter.safetensors", {"fc.weight": (2, 2)})
    data = inventory_for(tmp_path, drafter).model_dump(exclude_none=True)
    inventory = Inventory.model_validate(data | {"pct": {"vmid": 129}})
    with opened(inventory, local=True) as transport:
        assert isinstance(transport, PctTransport)
        assert (transport.name, transport.node.name) == ("here", "localhost")
        assert transport.where == "container 129 on localhost"
    (node / "state").write_text("stopped")
    with pytest.raises(PreflightError, match="is stopped"), opened(inventory, local=True):
        pass
