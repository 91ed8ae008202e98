"""Gathering: all facts of a host in a handful of commands, and what is left out without root."""

from __future__ import annotations

import re
import time

import pytest
from fakes import FakeTransport
from fit import PRODUCTION, fit
from material import recorded

from deployer.facts import proxmox
from deployer.facts.gather import Facts, gather


def box(*, root: bool = True, clock: float | None = None) -> FakeTransport:
    """A stand-in for the production container: each command answers with its example."""
    machine = recorded("host_ct129_with_compiler.txt")
    if not root:
        machine = machine.replace("sudo=yes", "sudo=")
    if clock is not None:
        machine = re.sub(r"clock=.*", f"clock={clock}", machine)
    room = 4 * recorded("disk_overlay.txt") + recorded("disk_shm.txt") + "pushed=4096\n"
    return FakeTransport(
        {
            re.compile(r"os-release"): machine,
            re.compile(r"df -P"): room,
            re.compile(r"nvidia-smi"): recorded("gpu_a6000_pair_held_by_unit.txt"),
            re.compile(r"systemd-run"): recorded("unit_good.txt"),
            re.compile(r"^out=\$\(ss "): recorded("port_seen_without_root.txt"),
            re.compile(r"^systemctl show"): recorded("service_absent.txt"),
            re.compile(r"config\.json"): "{}",
        },
        uid=1000,
    )


def test_everything_about_a_box_takes_seven_commands() -> None:
    transport = box()
    facts = gather(PRODUCTION, transport)
    assert len(transport.commands) == 7
    assert facts.room.pushed == 4096
    assert [holder.unit for holder in facts.gpus.holders] == ["mtp-vllm.service"] * 2
    assert facts.confinement == fit().confinement
    assert facts.host.name == "ct129"


def test_what_needs_root_is_asked_as_root_and_left_out_without() -> None:
    able, unable = box(), box(root=False)
    gather(PRODUCTION, able)
    assert sum(command.startswith("sudo ") for command in able.commands) == 5
    facts: Facts = gather(PRODUCTION, unable)
    assert not any(command.startswith("sudo ") for command in unable.commands)
    assert facts.confinement is None
    assert facts.port_holder is not None, "a listener is seen all the same, only not who it is"


@pytest.mark.parametrize("apart", [0.0, 90.0, -86_500.0])
def test_the_clocks_are_compared_when_the_host_told_its_own(apart: float) -> None:
    facts = gather(PRODUCTION, box(clock=time.time() + apart))
    assert facts.skew is not None
    assert abs(facts.skew - apart) < 20


def test_the_proxmox_host_takes_one_more() -> None:
    jump = FakeTransport({re.compile(r"pveversion"): recorded("proxmox_good.txt")}, name="kpro5")
    assert proxmox.read(jump).name == "kpro5"
    assert len(jump.commands) == 1
