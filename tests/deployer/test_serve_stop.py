"""What is left of a unit when systemd has stopped it: the real command, on real processes and a folder in place of
the cgroups; systemctl is a stand-in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FakeTransport

from deployer.errors import DeployError
from deployer.serve.service import stop_command, stop_unit
from deployer.transport.base import Result
from deployer.transport.shell import CommandError

DEAF = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        "#!/bin/sh\ncase $1 in show) cat $HERE/group ;; stop) touch $HERE/stopped ;; is-active) exit 3 ;; esac\n"
    )
    systemctl.chmod(0o755)
    (tmp_path / "group").write_text("/custom.slice/some.service\n")
    return tmp_path


def put(cgroups: Path, group: str, *processes: subprocess.Popen[bytes]) -> Path:
    """A cgroup whose processes are these, as long as they live."""
    folder = cgroups / group
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{process.pid}\n" for process in processes))
    return folder / "cgroup.procs"


def stopped(cgroups: Path) -> subprocess.CompletedProcess[str]:
    # A kernel empties cgroup.procs by itself; here `cat` leaves out who is dead.
    cat = cgroups / "cat"
    cat.write_text(
        '#!/bin/sh\nfor f; do case $f in *cgroup.procs) for p in $(/bin/cat "$f"); do\n'
        'case $(/bin/cat /proc/$p/stat 2>/dev/null) in *") Z "*|"") ;; *) echo $p ;; esac; done ;;\n'
        '*) /bin/cat "$f" ;; esac; done\n'
    )
    cat.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", "-c", stop_command("some.service", str(cgroups), "0.1")],
        env={"PATH": f"{cgroups}:{os.environ['PATH']}", "HERE": str(cgroups)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def orphans() -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """One that ends when it is asked to, one that does not."""
    gentle = subprocess.Popen(["sleep", "60"])
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    deaf.stdout.readline()
    yield gentle, deaf
    for process in (gentle, deaf):
        process.kill()
        process.wait()
    deaf.stdout.close()


def test_a_unit_that_leaves_nothing_is_stopped_at_once(cgroups: Path) -> None:
    assert stopped(cgroups).returncode == 0
    assert (cgroups / "stopped").exists()


@pytest.mark.parametrize("root", ["", "unified/", "systemd/"])
def test_orphans_of_its_cgroup_are_ended_asked_first_and_then_not(
    cgroups: Path, orphans: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]], root: str
) -> None:
    put(cgroups, f"{root}custom.slice/some.service/worker", *orphans)
    assert stopped(cgroups).returncode == 0
    assert [process.wait(10) for process in orphans] == [-15, -9]


def test_processes_of_other_units_are_left_alone(cgroups: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        put(cgroups, "custom.slice/other.service", other)
        (cgroups / "group").write_text("/\n")
        assert stopped(cgroups).returncode == 0
        assert other.poll() is None
        other.kill()


def test_what_cannot_be_ended_is_an_error_that_names_it() -> None:
    host = FakeTransport({stop_command("x.service"): Result("", 9, "", "812 VLLM::Worker_TP\n813 python\n")})
    with pytest.raises(DeployError, match="do not end: 812 VLLM::Worker_TP, 813 python\n") as caught:
        stop_unit(host, "x.service")
    assert "restart of the machine" in caught.value.remedy
    host = FakeTransport({stop_command("x.service"): Result("", 1, "", "Failed to stop")})
    with pytest.raises(CommandError):
        stop_unit(host, "x.service")
