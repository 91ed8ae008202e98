"""The transient unit: which settings are tried, how, and what is read from the answers."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from material import recorded

from deployer.facts import confinement
from deployer.facts.confinement import Confinement, Trial
from deployer.inventory.load import load

FULL = (None, 65536)


def read(name: str) -> Confinement:
    found = confinement.parse(recorded(f"unit_{name}.txt"))
    assert found is not None
    return found


def codes(found: Confinement) -> dict[str, int]:
    return {trial.group: trial.code for trial in found.trials}


def test_the_settings_are_those_of_the_templates_but_for_what_makes_or_runs_something() -> None:
    asked = confinement.of_inventory(load("ct129"))
    for setting in ("ProtectSystem=strict", "ProtectHome=yes", "LimitMEMLOCK=infinity", "DevicePolicy=closed"):
        assert setting in asked
    assert "PrivateUsers=yes" in confinement.of_inventory(load("staging"))
    keys = {setting.partition("=")[0] for setting in asked}
    assert not keys & {
        "ExecStart",
        "StateDirectory",
        "CacheDirectory",
        "EnvironmentFile",
        "User",
        "Restart",
        "KillMode",
    }
    assert not any("$" in setting for setting in asked)


def test_only_the_service_section_is_read() -> None:
    text = "[Unit]\nStartLimitBurst=3\n[Service]\n# A=b\nPrivateTmp=yes\nExecStart=/bin/x\n[Install]\nWantedBy=x\n"
    assert confinement.settings([text]) == ("PrivateTmp=yes",)


def test_a_unit_that_runs_tells_its_limits_and_which_nodes_open() -> None:
    good = read("good")
    assert (good.account, good.trials, (good.memlock, good.nofile)) == ("ddtree", (Trial("all", 0),), FULL)
    assert dict(good.opened) == dict.fromkeys(
        ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"), "ok"
    )
    assert read("account_to_be_made").account == "nobody"
    assert read("without_gpus").opened == ()
    assert dict(read("cgroup_refuses_uvm").opened)["/dev/nvidia-uvm"] == "Operation not permitted"
    assert dict(read("mode_refuses").opened)["/dev/nvidia0"] == "Permission denied"


def test_what_does_not_run_is_narrowed_down_to_a_group() -> None:
    nested = read("no_nesting")
    groups = {group: code for group, code in codes(nested).items() if not group.startswith("only_")}
    assert {group for group, code in groups.items() if code} == {"all", "namespaces"}
    assert codes(nested)["namespaces"] == 226
    assert (nested.memlock, nested.nofile) == FULL, "from the unit that asked for the limits"
    assert {group for group, code in codes(read("memlock_refused")).items() if code == 205} == {"all", "limits"}
    assert read("old_systemd").trials[0] == Trial("all", 1, "Unknown assignment: PrivateIPC=yes")
    assert set(codes(read("no_bus")).values()) == {1}


def test_what_a_service_can_do_without_is_known_and_what_it_cannot_too() -> None:
    assert read("good").softer == ()
    assert read("old_systemd").softer == (), "not proved: a service may start all the same"
    nested = read("no_nesting").softer
    assert nested is not None
    assert nested[:3] == ("ProtectSystem", "ProtectHome", "PrivateTmp")
    assert "ProtectClock" not in nested
    assert read("memlock_refused").softer is None


def test_settings_that_fail_only_together_all_go() -> None:
    asked = read("no_nesting")
    together = tuple(replace(t, code=226 if t.group == "softer" else t.code) for t in asked.trials)
    softer = replace(asked, trials=together).softer
    assert softer is not None
    assert "ProtectClock" in softer


def test_without_systemd_nothing_is_known() -> None:
    assert confinement.parse(recorded("unit_no_systemd.txt")) is None


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder for PATH with a stand-in for systemd-run: it runs the command, unless a setting is on its list."""
    stand_in = tmp_path / "systemd-run"
    stand_in.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >>{tmp_path}/asked\n'
        f"for word; do case $word in $(cat {tmp_path}/refused)) exit 226;; esac; done\n"
        'while [ "$1" != /bin/sh ]; do shift; done\n'
        'exec "$@"\n'
    )
    stand_in.chmod(0o755)
    (tmp_path / "refused").write_text("nothing")
    return tmp_path


def answer(machine: Path, user: str) -> Confinement:
    command = confinement.command(confinement.of_inventory(load("ct129")), user)
    command = command.replace("/run/systemd/system", str(machine)).replace("/dev/nvidia*", f"{machine}/no-nvidia*")
    text = subprocess.check_output(["/bin/sh", "-c", f"PATH={machine}:$PATH; {command}"], text=True)
    found = confinement.parse(text)
    assert found is not None
    return found


def test_a_good_host_is_asked_for_one_unit_only(machine: Path) -> None:
    found = answer(machine, "root")
    assert codes(found) == {"all": 0}
    assert found.account == "root"
    assert found.nofile != 0
    asked = (machine / "asked").read_text()
    assert asked.count("ProtectSystem=strict") == 1
    assert "--wait --collect --pipe" in asked
    assert "User=root" in asked


def test_a_refused_setting_is_found_by_trying_each_group_and_then_each_of_its_settings(machine: Path) -> None:
    (machine / "refused").write_text("Private[MT]*=yes")
    found = answer(machine, "no-such-account")
    refused = {"all", "namespaces", "only_PrivateMounts", "only_PrivateTmp"}
    assert {group for group, code in codes(found).items() if code == 226} == refused
    assert codes(found)["plain"] == codes(found)["limits"] == 0
    assert found.softer == ("PrivateTmp", "PrivateMounts")
    softer = (machine / "asked").read_text().splitlines()[-1]
    assert "PrivateTmp" not in softer
    assert "ProtectSystem=strict" in softer
    assert "NoNewPrivileges=yes" in softer
    assert found.account == "nobody", "as the account that will be made has no rights of its own"


def test_the_shell_opens_a_node_and_says_what_the_kernel_said(tmp_path: Path) -> None:
    """/dev/null stands in for a node that opens, a folder for one that does not."""
    script = confinement._LOOK.replace("/dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm", f"/dev/null {tmp_path} /no")
    said = subprocess.check_output(["/bin/sh", "-c", script], text=True)
    found = confinement.parse(f"[account]\nx\n[all]\n{said}exit 0\n")
    assert found is not None
    assert dict(found.opened) == {"/dev/null": "ok", str(tmp_path): "Is a directory"}
    assert "${" not in script, "systemd would take it for one of its own variables"
