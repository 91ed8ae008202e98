"""doctor: this machine, each jump host, the box; what fails on the way hides nothing before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fit import PRODUCTION, STAGING, fit
from material import TINY_PROFILE, inventory_for, recorded
from sshd import Servers

from deployer.cli import check, doctor
from deployer.cli.host import choices
from deployer.errors import PreflightError
from deployer.facts import laptop
from deployer.facts.finding import Finding, Level
from deployer.facts.judge_laptop import laptop_findings
from deployer.facts.laptop import Laptop, Rsync
from deployer.inventory.model import Inventory
from deployer.transport import jumps
from deployer.transport.local import LocalTransport

GOOD = Laptop("Linux 6.8, x86_64", (3, 11, 2), True, "9.2p1", Rsync("rsync", (3, 2, 7)), 1)


def on_laptop(seen: Laptop, subject: str, inventory: Inventory = PRODUCTION) -> Finding:
    return next(finding for finding in laptop_findings(seen, inventory) if finding.subject == subject)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tool_rsync_3.2.txt", Rsync("rsync", (3, 2, 7))),
        ("tool_rsync_2.6.9_macos.txt", Rsync("rsync", (2, 6, 9))),
        ("tool_openrsync_macos.txt", Rsync("openrsync", (2, 6, 9))),
    ],
)
def test_which_rsync_it_is(name: str, expected: Rsync) -> None:
    assert laptop.parse_rsync(recorded(name)) == expected


def test_which_openssh_and_how_many_keys() -> None:
    assert laptop.parse_openssh(recorded("tool_ssh_debian.txt")) == "9.2p1"
    assert laptop.parse_openssh(recorded("tool_ssh_macos.txt")) == "9.7p1"
    assert laptop.parse_openssh("") == ""
    listed = "256 SHA256:abc ann@laptop (ED25519)\n3072 SHA256:def old (RSA)\n"
    assert laptop.parse_agent(listed, 0) == 2
    assert laptop.parse_agent("The agent has no identities.\n", 1) == 0
    assert laptop.parse_agent("Could not open a connection to your authentication agent.\n", 2) is None


def test_this_machine_as_it_is(tmp_path: Path, drafter: Path) -> None:
    inventory = inventory_for(tmp_path, drafter)
    seen = laptop.read(inventory, ())
    assert seen.python >= (3, 11)
    assert seen.openssh
    assert seen.free > 0
    assert (seen.wheels, seen.unset, seen.identities) == (None, (), None)
    wanting = inventory.model_copy(
        update={"serve": inventory.serve.model_copy(update={"environment": {"A": "$ONE", "B": "$TWO", "C": "plain"}})}
    )
    assert laptop.read(wanting, (), {"ONE": "secret"}).unset == ("TWO",)


def test_a_good_laptop() -> None:
    assert {finding.level for finding in laptop_findings(GOOD, PRODUCTION)} == {Level.OK}


@pytest.mark.parametrize(
    ("change", "subject", "level", "seen", "remedy"),
    [
        ({"openssh": ""}, "ssh", Level.FAIL, "absent", "install OpenSSH"),
        ({"rsync": Rsync()}, "rsync", Level.WARN, "absent", "install rsync 3.1"),
        ({"rsync": Rsync("openrsync", (2, 6, 9))}, "rsync", Level.WARN, "openrsync 2.6.9", "brew install rsync"),
        ({"rsync": Rsync("rsync", (2, 6, 9))}, "rsync", Level.WARN, "rsync 2.6.9", "brew install rsync"),
        ({"keys": None}, "keys", Level.WARN, "no agent, none on disk", "ssh-keygen"),
        ({"keys": 0}, "keys", Level.WARN, "0 in the agent", "ssh-add"),
        ({"unset": ("API_KEY",)}, "environment", Level.FAIL, "$API_KEY not set", "export API_KEY"),
    ],
)
def test_what_a_laptop_may_lack(change: dict[str, Any], subject: str, level: Level, seen: str, remedy: str) -> None:
    found = on_laptop(replace(GOOD, **change), subject)
    assert found.level is level
    assert seen in found.seen
    assert remedy in found.remedy


def test_a_key_on_disk_is_as_good_as_an_agent() -> None:
    assert on_laptop(replace(GOOD, keys=None, identities=(Path("/k"),)), "keys").level is Level.OK
    local = replace(GOOD, keys=None, identities=None)
    assert "keys" not in {finding.subject for finding in laptop_findings(local, PRODUCTION)}, "nobody is asked for one"


def test_an_empty_wheelhouse_wants_room_and_pip() -> None:
    empty = replace(GOOD, wheels=0, free=100)
    assert on_laptop(empty, "wheelhouse", STAGING).level is Level.FAIL
    assert on_laptop(replace(empty, pip=False), "pip", STAGING).level is Level.FAIL
    assert on_laptop(replace(empty, wheels=150), "wheelhouse", STAGING).level is Level.OK


@pytest.fixture
def inventory(tmp_path: Path, drafter: Path, servers: Servers) -> Inventory:
    """A box behind a jump host, both SSH servers on loopback."""
    return Inventory.model_validate(
        {
            "name": "box",
            "root": f"{tmp_path}/root",
            "ssh": {"host": "box", "config_file": servers.config, "connect_timeout": 5},
            "drafter": {"file": drafter, "profile": str(TINY_PROFILE)},
            "target": {"path": f"{tmp_path}/target"},
            "install": {"build": "cpu"},
            "serve": {"served_model_name": "tiny"},
        }
    )


def test_each_jump_host_is_reached_as_a_host_of_its_own(inventory: Inventory, servers: Servers) -> None:
    assert [hop.alias for hop in jumps.jumps(inventory)] == ["jump"]
    servers.box.stop()
    with jumps.reached(inventory.ssh, 0) as transport:
        assert transport.name == "jump"
        port = transport.run('echo "$SSH_CONNECTION"').stdout.split()[3]
    assert port == str(servers.jump.port)


def test_every_machine_on_the_way_has_a_section(inventory: Inventory) -> None:
    sections = dict(doctor.visits(inventory))
    here, jump, box = sections
    assert here == "this machine"
    assert jump.startswith("jump host jump (")
    assert box.startswith("box box (")
    assert [finding.level for finding in sections[jump]] == [Level.OK]
    assert "no Proxmox host" in sections[jump][0].seen
    assert {"system", "disk", "drafter", "target", "clock"} <= {finding.subject for finding in sections[box]}


def test_a_box_that_is_down_hides_neither_this_machine_nor_the_jump_host(
    inventory: Inventory, servers: Servers
) -> None:
    servers.box.stop()
    sections = list(doctor.visits(inventory))
    assert [findings[-1].level for _, findings in sections[1:]] == [Level.OK, Level.FAIL]
    reach = sections[-1][1][0]
    assert reach.subject == "reach"
    assert "hop 2 of 2: box" in reach.seen
    assert "is the machine (or container) up" in reach.remedy


def test_a_jump_host_that_is_down_ends_it(inventory: Inventory, servers: Servers) -> None:
    servers.jump.stop()
    sections = list(doctor.visits(inventory))
    assert [title.split(" (")[0] for title, _ in sections] == ["this machine", "jump host jump"]
    assert sections[1][1][0].level is Level.FAIL
    assert "connection refused" in sections[1][1][0].seen


def test_a_jump_host_that_takes_no_commands_is_no_obstacle(inventory: Inventory, servers: Servers) -> None:
    servers.jump.stop()
    with servers.jump.config.open("a") as config:
        config.write("ForceCommand /bin/false\n")
    servers.jump.start()
    sections = list(doctor.visits(inventory))
    jump = sections[1][1][0]
    assert jump.level is Level.WARN
    assert "takes no commands" in jump.seen
    assert sections[2][0].startswith("box box")


def test_an_ssh_config_that_cannot_be_read_is_a_finding(inventory: Inventory, tmp_path: Path) -> None:
    broken = inventory.ssh.model_copy(update={"config_file": tmp_path / "absent"})
    ((title, findings),) = doctor.visits(inventory.model_copy(update={"ssh": broken}))
    assert title == "this machine"
    assert (findings[-1].level, findings[-1].subject) == (Level.FAIL, "way")
    assert findings[-1].remedy == "mend the SSH config"


def test_without_ssh_the_box_is_this_machine(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "local", True)
    assert [title for title, _ in doctor.visits(inventory)] == ["this machine", "box box"]


def test_the_verb_shows_each_machine_and_ends_with_what_has_to_be_mended(
    inventory: Inventory, servers: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers.box.stop()
    monkeypatch.setattr(doctor, "load", lambda name: inventory)
    with pytest.raises(PreflightError) as caught:
        doctor.doctor("box")
    assert "reach" in caught.value.what
    shown = capsys.readouterr().out
    assert shown.index("this machine:") < shown.index("jump host jump (") < shown.index("box box (")
    assert "do: is the machine (or container) up" in shown


def test_check_asks_the_last_jump_host_of_a_box_with_gpus_only(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jump host's answer is an example, since none here is a Proxmox host; the connection to it is real."""
    asked: list[str] = []

    def answered(transport: Any) -> Any:
        asked.append(transport.name)
        return check.proxmox.parse(recorded("proxmox_uvm_major_changed.txt"))

    monkeypatch.setattr(check.proxmox, "read", answered)
    monkeypatch.setattr(check, "gather", lambda *_: fit())
    host = check.Host(inventory, LocalTransport())
    assert "cgroup rules" not in {finding.subject for finding in check.everything(host)}
    gpus = inventory.model_copy(update={"checks": inventory.checks.model_copy(update={"gpus": 2})})
    found = {finding.subject: finding for finding in check.everything(replace(host, inventory=gpus))}
    assert asked == ["jump"]
    assert found["cgroup rules"].level is Level.FAIL


def test_check_goes_on_without_the_jump_hosts_word(inventory: Inventory, servers: Servers, monkeypatch: Any) -> None:
    monkeypatch.setattr(check, "gather", lambda *_: fit())
    servers.jump.stop()
    gpus = inventory.model_copy(update={"checks": inventory.checks.model_copy(update={"gpus": 2})})
    subjects = {finding.subject for finding in check.everything(check.Host(gpus, LocalTransport()))}
    assert "gpus" in subjects
    assert "container" not in subjects
