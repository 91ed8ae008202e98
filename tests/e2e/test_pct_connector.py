"""CT129 without sshd: the same deployer reaches it through kpro5's `pct`, which is the lab's stand-in for Proxmox's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deployer.inventory.load import load
from deployer.plan.layout import Layout
from deployer.plan.step import Progress
from deployer.push import staged
from deployer.push.file import Sending
from deployer.serve.way_back import WayBack
from deployer.transport.open import opened
from deployer.transport.pct import PctTransport
from tests.e2e.conftest import Deployer
from tests.lab.box import Lab
from tests.lab.nsproxy import Faults

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def inside(lab: Lab, command: str) -> str:
    """Output of a command in CT129, by the lab's own way."""
    return subprocess.run(
        lab.attach("ct129", "sh", "-c", command), capture_output=True, text=True, timeout=60, check=False
    ).stdout


@pytest.fixture(scope="module")
def without_sshd(deployer: Deployer) -> Iterator[Deployer]:
    """The staging inventory by way of kpro5 and [pct]; CT129's sshd is stopped meanwhile."""
    text = deployer.inventory.read_text()
    text = text.replace('host = "ct129"', 'host = "kpro5"').replace("[checks]", "[pct]\nvmid = 129\n\n[checks]")
    path = deployer.inventory.with_name("pct.toml")
    path.write_text(text)
    inside(deployer.lab, "systemctl stop ssh ssh.socket")
    assert subprocess.run(deployer.lab.ssh("ct129", "true"), capture_output=True, check=False).returncode == 255
    yield Deployer(path, deployer.lab)
    inside(deployer.lab, "rm -rf /opt/ddtree; systemctl start ssh")


@pytest.fixture
def container(without_sshd: Deployer) -> Iterator[PctTransport]:
    with opened(load(str(without_sshd.inventory))) as transport:
        assert isinstance(transport, PctTransport)
        yield transport


@dataclass
class Seen(Progress):
    lines: list[str] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def bytes(self, done: int, total: int) -> None:
        self.amounts.append(done)


def test_check_sees_the_container_and_the_stage(without_sshd: Deployer) -> None:
    output = without_sshd.ok("check").output
    assert "kpro5:/var/lib/ddtree-deploy/129" in output
    assert "systemd carries out its settings" in output


def test_doctor_passes_the_node_and_then_the_container(without_sshd: Deployer) -> None:
    output = without_sshd.ok("doctor").output
    assert output.index("this machine:") < output.index("jump host kpro5") < output.index("box container 129 on kpro5")


def test_a_push_arrives_and_a_second_one_sends_nothing(without_sshd: Deployer) -> None:
    assert "by pct push into container 129" in without_sshd.ok("push").output
    assert (
        inside(without_sshd.lab, "cd /opt/ddtree/models/tiny-hybrid && sha256sum -c .sha256sums | grep -c OK").strip()
        == "2"
    )
    assert "nothing to do" in without_sshd.ok("push").output
    left = without_sshd.lab.ssh("kpro5", "ls /var/lib/ddtree-deploy /run/ddtree-* 2>/dev/null")
    assert subprocess.run(left, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("by_ssh", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_cut_on_the_way_is_continued_where_the_stage_is(
    container: PctTransport, without_sshd: Deployer, tmp_path: Path, by_ssh: bool
) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(24_000_000))
    sha = hashlib.sha256(source.read_bytes()).hexdigest()
    sending, seen, lab = Sending(source, sha, "/opt/ddtree/models/large"), Seen(), without_sshd.lab
    lab.set_faults(Faults(cut_after=9_000_000, cut_times=2))
    try:
        staged.send(container, sending, seen, by_ssh=by_ssh)
    finally:
        lab.set_faults(Faults())
    went_on = [int(line.split(" at ")[1].split()[0]) for line in seen.lines if "continuing at" in line]
    assert len(went_on) == 2, seen.lines
    assert 0 < went_on[0] < went_on[1] < 24_000_000
    assert inside(lab, "sha256sum /opt/ddtree/models/large; ls /opt/ddtree/models").split()[0] == sha
    assert "large.part" not in inside(lab, "ls /opt/ddtree/models")
    container.run("rm /opt/ddtree/models/large")


@pytest.mark.full
def test_a_full_container_is_named_and_nothing_gets_a_name(container: PctTransport, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(6_000_000))
    sending = Sending(source, hashlib.sha256(source.read_bytes()).hexdigest(), "/mnt/small/large")
    container.run("mkdir -p /mnt/small && mount -t tmpfs -o size=4m none /mnt/small")
    try:
        with pytest.raises(Exception, match="the disk is full while sending large"):
            staged.send(container, sending, Seen(), by_ssh=False)
        assert container.run("ls /mnt/small").stdout.split() in ([], ["large.part"])
    finally:
        container.run("umount /mnt/small")
        staged.clear(container)


def test_the_host_watches_over_a_switch_that_is_made_through_pct(
    container: PctTransport, without_sshd: Deployer
) -> None:
    """The line to the deployer ends before the switch does: the container itself goes the way back."""
    layout = Layout.of(load(str(without_sshd.inventory)))
    container.run(f"mkdir -p {layout.state}; rm -f /run/went-back")
    way = WayBack(container, layout, patience=120.0)
    try:
        assert way.keep("touch /run/went-back"), "the host watches"
        assert way._line is not None
        way._line.close()
        container.run("for i in $(seq 100); do test -e /run/went-back && exit; sleep 0.2; done; exit 1")
    finally:
        way.end()
        unit = f"{layout.service}-way-back"
        container.run(
            f"systemctl disable -q {unit}; rm -rf {layout.state} {layout.way_back_file}; systemctl daemon-reload"
        )


def test_a_port_on_the_containers_loopback_is_reached_from_here(container: PctTransport) -> None:
    container.run("systemd-run --unit=answers python3 -m http.server --bind 127.0.0.1 --directory /etc 8123")
    try:
        container.run(
            "until python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8123))\"; do sleep 0.2; done"
        )
        with container.forward("127.0.0.1", 8123) as here:
            for _ in range(2):
                with urllib.request.urlopen(f"http://127.0.0.1:{here}/hostname", timeout=30) as answer:
                    assert answer.read() == b"ct129\n"
    finally:
        container.run("systemctl stop answers")


def test_a_container_that_is_stopped_is_said_to_be(without_sshd: Deployer) -> None:
    pct = without_sshd.lab.ssh
    subprocess.run(pct("kpro5", "pct stop 129"), check=True, capture_output=True, timeout=60)
    try:
        ran = without_sshd.run("check")
        assert (ran.code, "container 129 is stopped" in ran.output, "pct start 129" in ran.output) == (3, True, True)
    finally:
        subprocess.run(pct("kpro5", "pct start 129"), check=True, capture_output=True, timeout=60)
