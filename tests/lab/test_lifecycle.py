"""The lab comes and goes without a trace, also from half states, also beside another, or says why it cannot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .base import image_name, suite_of_machine
from .box import Lab
from .fixture import lab_beside
from .machine import CANNOT
from .remains import proxies
from .support import attach, run, ssh, wait_for

pytestmark = pytest.mark.lab

LAB_SH = Path(__file__).with_name("lab.sh")


def traces(lab: Lab) -> list[str]:
    """What the machine itself knows of the lab, asked without the lab's own code."""
    place = lab.place
    found = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{place.root}/" in line]
    found += [line for line in run(["ip", "netns"]).stdout.splitlines() if line.split()[0] == place.namespace]
    found += run(["find", "/sys/fs/cgroup", "-name", f"lxc.*.{place.namespace}*"]).stdout.splitlines()
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            about = (proc / "cgroup").read_text() + (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            dead = "State:\tZ" in (proc / "status").read_text()  # and only waits for the machine's init to notice
        except OSError:
            continue
        if not dead and (f"{place.root}/" in about or f".{place.namespace}" in about):
            found.append(f"process {proc.name}: {about}")
    if place.root.exists():
        found += [str(path) for path in place.root.iterdir() if path.name not in ("keys", "lock")]
    return found


@pytest.fixture
def second(staging_lab: Lab) -> Iterator[Lab]:
    lab = lab_beside("second")
    lab.down()
    yield lab
    lab.down()
    shutil.rmtree(lab.place.root)


def lab_sh(lab: Lab, *words: str) -> list[str]:
    return [
        "env",
        f"LAB_DIR={lab.place.root}",
        f"LAB_BASE={lab.place.base}",
        f"LAB_NS={lab.place.namespace}",
        str(LAB_SH),
        *words,
    ]


def killed_proxy(lab: Lab) -> None:
    lab.up()
    for pid in proxies(lab.place):
        os.kill(pid, signal.SIGKILL)


def killed_lxc_monitor(lab: Lab) -> None:
    lab.up()
    listings = f"*/lxc.monitor.{lab.place.namespace}/cgroup.procs"
    found = run(["find", "/sys/fs/cgroup", "-path", listings]).stdout.split()
    pids = {int(pid) for procs in found for pid in Path(procs).read_text().split()}
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def lost_namespace_name(lab: Lab) -> None:
    lab.up()
    run(["ip", "netns", "delete", lab.place.namespace])


def lost_files(lab: Lab) -> None:
    lab.up()
    for path in (lab.place.state, lab.place.ssh_config, lab.place.lxc / lab.place.namespace / "config"):
        path.unlink()


def powered_off(lab: Lab) -> None:
    lab.up()
    attach(lab, "kpro5", "systemctl", "poweroff", "--force", "--force")


def killed_while_booting(lab: Lab) -> None:
    booting = subprocess.Popen(lab_sh(lab, "up"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for((lab.place.run / "kpro5.log").exists)
    booting.kill()
    booting.wait()


def nothing_but_a_namespace(lab: Lab) -> None:
    run(["ip", "netns", "add", lab.place.namespace])


class TestComingAndGoing:
    def test_up_twice_down_twice(self, staging_lab: Lab, second: Lab) -> None:
        assert second.up()
        assert second.port() != staging_lab.port()
        again = run(lab_sh(second, "up"))
        assert (again.returncode, "already up; nothing to do" in again.stdout) == (0, True)
        assert "cached" in run(lab_sh(second, "build")).stdout
        assert run(lab_sh(second, "status")).returncode == 0
        assert traces(second), "the search for traces finds a lab that is up"
        assert second.down()
        assert traces(second) == []
        assert not second.down()
        assert run(lab_sh(second, "status")).returncode == 3
        assert ssh(staging_lab, "ct129", "true").returncode == 0, "the lab beside it lives on"

    def test_reset_is_fresh_but_known(self, second: Lab) -> None:
        second.up()
        key = (second.place.keys / "ct129.pub").read_text()
        assert ssh(second, "ct129", "touch mark").returncode == 0
        assert run(lab_sh(second, "reset")).returncode == 0
        assert ssh(second, "ct129", "ls").stdout == ""
        assert (second.place.keys / "ct129.pub").read_text() == key

    @pytest.mark.parametrize(
        "break_it",
        [
            killed_proxy,
            killed_lxc_monitor,
            lost_namespace_name,
            lost_files,
            powered_off,
            killed_while_booting,
            nothing_but_a_namespace,
        ],
    )
    def test_down_in_any_half_state_leaves_nothing(self, second: Lab, break_it: Callable[[Lab], None]) -> None:
        break_it(second)
        assert traces(second)
        down = run(lab_sh(second, "down"))
        assert down.returncode == 0, down.stderr
        assert traces(second) == []

    def test_up_mends_a_half_state(self, second: Lab) -> None:
        killed_proxy(second)
        half = run(lab_sh(second, "status"))
        assert (half.returncode, "half up" in half.stdout) == (4, True)
        assert second.up()
        assert ssh(second, "ct129", "true").returncode == 0

    def test_an_interrupted_up_leaves_nothing(self, second: Lab) -> None:
        booting = subprocess.Popen(lab_sh(second, "up"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for((second.place.run / "kpro5.log").exists)
        booting.send_signal(signal.SIGINT)
        assert booting.wait(timeout=30) != 0
        assert traces(second) == []

    def test_another_package_list_is_another_image(self) -> None:
        suite = suite_of_machine()
        assert image_name(suite, ["a", "b"]) == image_name(suite, ["b", "a"])
        assert len({image_name(suite), image_name(suite, ["a"]), image_name("another")}) == 3


class TestCannot:
    @pytest.mark.parametrize(
        ("without", "reason"),
        [
            (["unshare", "--user"], "it needs root"),
            (["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"], "it may not create mount and PID"),
            (["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"], "it may not create a network"),
        ],
    )
    @pytest.mark.parametrize("verb", ["check", "build", "up"])
    def test_one_sentence_and_a_code_of_its_own(self, without: list[str], reason: str, verb: str) -> None:
        refused = run([*without, *lab_sh(lab_beside("none"), verb)])
        assert refused.returncode == CANNOT
        assert f"this machine cannot run the lab because {reason}" in refused.stderr
        assert refused.stderr.endswith("make test-unit\n")
        assert refused.stderr.count("\n") == 1
