"""`stop` and `uninstall`, and the account that the service runs as."""

from __future__ import annotations

import re

from serving import ROOT, Host, Machine, applied, inventory

from deployer.plan.apply import Silent
from deployer.serve import plan, stop, uninstall
from deployer.serve.account import step as account_step
from deployer.serve.service import Service


def test_stop_is_done_once(host: Host, machine: Machine) -> None:
    assert stop.plan(inventory(), host).pending == ()
    applied(plan.plan(inventory(), host))
    applied(stop.plan(inventory(), host))
    assert not machine.active
    assert stop.plan(inventory(), host).pending == ()


def test_uninstall_names_each_thing_and_touches_nothing_else(host: Host, machine: Machine) -> None:
    applied(plan.plan(inventory(), host))
    present = f"/etc/systemd/system/ddtree-vllm.service\n{ROOT}/releases\n{ROOT}/models\n/var/lib/ddtree-vllm\n"
    host.answers[re.compile(r"^for p in")] = present
    host.answers[re.compile(r"^(rm -rf|rmdir|PATH=)")] = ""
    applied(uninstall.plan(inventory(), host, models=True))
    removed = [command.removeprefix("sudo rm -rf ") for command in host.commands if command.startswith("sudo rm -rf")]
    assert removed == present.split()
    assert any("userdel ddtree" in command for command in host.commands)
    look = next(command for command in host.commands if command.startswith("sudo for p in"))
    assert f"{ROOT}/models" in look
    uninstall.plan(inventory(), host, models=False)
    assert f"{ROOT}/models" not in host.commands[-3] + host.commands[-2] + host.commands[-1]


def test_uninstall_ends_a_fetch_that_is_under_way_before_its_folders_go(host: Host, machine: Machine) -> None:
    unit = "ddtree-vllm-fetch-0123456789ab.service"
    host.answers[re.compile(r"^for p in")] = f"{ROOT}/models\n"
    assert "fetch" not in [step.title for step in uninstall.plan(inventory(), host).steps]
    machine.fetching = f"{unit} loaded active running Fetches org/model from the hub\n"
    host.answers[re.compile(r"^(systemctl stop .*-fetch-|rm -rf|rmdir|PATH=)")] = ""
    applied(uninstall.plan(inventory(), host, models=True))
    stop_it = host.commands.index(f"sudo systemctl stop {unit}; rm -f /run/{unit}.token")
    assert stop_it < host.commands.index(f"sudo rm -rf {ROOT}/models")


def test_the_account_is_made_once_without_a_shell(host: Host, machine: Machine) -> None:
    layout = Service.of(inventory(), host).layout
    assert not account_step(layout, host).needed
    machine.account = False
    host.answers[re.compile("useradd")] = ""
    step = account_step(layout, host)
    assert step.action is not None
    step.action(Silent())
    assert "--shell /usr/sbin/nologin ddtree" in host.commands[-1]
