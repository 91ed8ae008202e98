"""The way back that the host keeps during a switch, run by a real shell. systemctl and systemd-run are stand-ins that
write down what they are asked, run the way back's script, and carry out what they are told to watch with.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from material import REPOSITORY

from deployer.plan.layout import Layout
from deployer.serve.endpoint import Endpoint
from deployer.serve.records import OLD, Record, Records, installed
from deployer.serve.service import Service
from deployer.serve.switch import way_back_script
from deployer.serve.way_back import WayBack
from deployer.transport.base import Transport
from deployer.transport.local import LocalTransport

SYSTEMCTL = """#!/bin/sh
echo "$*" >>{log}
case "$*" in
  "start ddtree-vllm-way-back.service")
    test ! -e {script} -a ! -e {script}.begun || sed -n s/^ExecStart=//p {unit} | exec /bin/sh ;;
  "is-active -q ddtree-vllm-watch"*) test -e {watching} ;;
  "stop ddtree-vllm-watch-*") while read pid; do kill $pid 2>/dev/null; done <{watching}; rm {watching} ;;
  "is-active"*) exit 3 ;;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
while [ "${{1#--}}" != "$1" ]; do shift; done
echo $$ >>{watching}
exec "$@"
"""
FILES = {"unit": "[Service]\n", "dropin": "[Unit]\n", "config": "port: 8000\n", "environment": "A=1\n"}


@dataclass(frozen=True)
class Here(Layout):
    """A layout that lies in the test's own folder, all of it."""

    @property
    def etc(self) -> str:
        return f"{self.root}/etc"

    @property
    def unit_file(self) -> str:
        return f"{self.root}/systemd/{self.unit}"

    @property
    def way_back_file(self) -> str:
        return f"{self.root}/systemd/{self.way_back_unit}"


@dataclass(frozen=True)
class Box:
    """A host on which `before` serves and `new` is about to."""

    layout: Here
    records: Records
    before: Record
    new: Record

    @property
    def log(self) -> Path:
        return Path(self.layout.root, "log")

    def script(self, *, comes_back: bool = True, foreign: str | None = None, before: bool = True) -> str:
        service = Service(self.records.transport, self.layout, "m", Endpoint(self.records.transport, 8000, "/none"))
        return way_back_script(service, self.records, self.before if before else None, comes_back, foreign)

    def in_place(self) -> str:
        """Whose files are read now: the remark that each deployment's files begin with."""
        texts = {Path(file.path).read_text().splitlines()[0] for file in installed(self.layout)}
        texts.add(f"# {Path(self.layout.current).readlink().name}")
        assert len(texts) == 1, texts
        return texts.pop().removeprefix("# ")

    def asked(self) -> list[str]:
        """What systemd was asked to do with the service itself."""
        own = f" {self.layout.unit}"
        return [line for line in self.log.read_text().splitlines() if line.endswith(own) and "show" not in line]


def record(name: str) -> Record:
    return Record(f"20260101T00000{name[-1]}Z-{name}", name, "0", "tree", "me@here", "now")


def make(root: Path) -> Box:
    """The host's state before a switch, written as a deployment would have."""
    layout = Here(str(root), "ddtree-vllm", "ddtree")
    records = Records(LocalTransport(), layout)
    for made in (before := record("r1"), new := record("r2")):
        folder = Path(records.path(made.id))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(f"# {made.release}\n{text}")
    (root / "systemd").mkdir(exist_ok=True)
    return Box(layout, records, before, new)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    made = make(tmp_path)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    names = {
        "log": made.log,
        "script": made.layout.way_back,
        "watching": tmp_path / "watching",
        "unit": made.layout.way_back_file,
    }
    for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN)):
        (bin_ / name).write_text(text.format(**names))
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    made.log.touch()
    made.records.stage(made.before, None)
    made.records.put_in_place()
    made.records.transport.run(f"ln -sfn {made.records.path(made.before.id)} {made.records.folder}/active")
    return made


def begin(box: Box, transport: Transport | None = None, **limits: float) -> WayBack:
    """What a switch does before it stops anything, and then the new files in place."""
    box.records.stage(box.new, box.before)
    way = WayBack(transport or box.records.transport, box.layout, **{"patience": 60.0, **limits})
    assert way.keep(box.script())
    box.records.put_in_place()
    return way


ENDED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
import test_serve_way_back as test
box = test.make(Path(sys.argv[1]))
way = test.begin(box, silence=float(sys.argv[4]))
print("begun", flush=True)
os.kill(os.getpid(), getattr(signal, sys.argv[3]))
"""


def deployer(box: Box, end: str, *, silence: float = 60.0) -> subprocess.Popen[str]:
    """A deployer of its own that has begun a switch, and then gets the signal `end`."""
    program = [sys.executable, "-c", ENDED, box.layout.root, str(Path(__file__).parent), end, str(silence)]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{Path(__file__).parent}"}
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)


def gone_back(box: Box) -> None:
    """Waits until the host has gone the way back."""
    deadline = time.monotonic() + 30
    while list(Path(box.layout.state).glob("way-back.sh*")):
        assert time.monotonic() < deadline, box.log.read_text()
        time.sleep(0.05)
    assert box.in_place() == "r1"


def test_when_the_deployer_is_killed_the_host_goes_back(box: Box) -> None:
    with deployer(box, "SIGKILL") as killed:
        assert killed.stdout is not None
        assert killed.stdout.read() == "begun\n"
    assert killed.returncode == -signal.SIGKILL
    gone_back(box)
    assert [line.split()[0] for line in box.asked()] == ["stop", "reset-failed", "start"]
    assert not list(Path(box.layout.root).rglob("*.new")) + list(Path(box.layout.root).rglob(f"*{OLD}"))


def test_a_switch_that_has_ended_leaves_no_way_back(box: Box) -> None:
    box.records.stage(box.new, box.before)
    way = WayBack(box.records.transport, box.layout, 60.0)
    assert way.keep(box.script())
    box.records.put_in_place()
    way.end()
    way.take()
    assert box.in_place() == "r2"
    assert box.asked() == []
    assert not Path(box.layout.way_back).exists()


def test_a_switch_that_takes_too_long_counts_as_lost_whatever_its_deployer_says(box: Box) -> None:
    way = begin(box, patience=4.0)
    gone_back(box)
    way.end()


def test_a_deployer_that_falls_silent_is_lost_though_its_line_is_open(box: Box) -> None:
    """Its process is stopped, as on a laptop that sleeps or behind a link that carries nothing and is not cut."""
    with deployer(box, "SIGSTOP", silence=3.0) as stopped:
        try:
            gone_back(box)
            assert stopped.poll() is None
        finally:
            stopped.kill()


def test_one_that_works_is_not_however_long_the_switch_takes(box: Box) -> None:
    way = begin(box, silence=2.0)
    time.sleep(3.0)
    assert way.stands()
    assert way.close()
    way.end()
    assert box.in_place() == "r2"


def test_a_way_that_carries_only_the_end_of_its_input_says_nothing_by_its_silence(box: Box) -> None:
    class Ends(LocalTransport):
        """What comes is kept back until it has ended, as `pct exec` may do."""

        def hold(self, command: str, source: BinaryIO, *, sudo: bool = False, stall: float = 60.0) -> None:
            class Late(io.RawIOBase):
                def read(self, size: int = -1) -> bytes:
                    while source.read(1):
                        pass
                    return b""

            super().hold(command, cast(BinaryIO, Late()), sudo=sudo, stall=stall)

    way = begin(box, Ends(), silence=0.3)
    time.sleep(1.5)
    assert way.stands()
    assert way._line is not None
    way._line.close()
    gone_back(box)


def test_the_line_ends_only_when_no_word_is_under_way(box: Box) -> None:
    """A file's number that is closed under a word may be another file's when the word is written."""
    writing, written = threading.Event(), threading.Event()

    class Line(io.RawIOBase):
        def write(self, word: object) -> int:
            writing.set()
            assert written.wait(30)
            return 1

    way, line = WayBack(LocalTransport(), box.layout, 10.0), cast(BinaryIO, Line())
    way._line = line
    speaking = threading.Thread(target=way._speak, args=(line, way._over))
    speaking.start()
    assert writing.wait(30)
    way.end()
    assert not line.closed
    written.set()
    speaking.join(30)
    assert line.closed


def test_whoever_comes_first_decides_whether_the_host_goes_back(box: Box) -> None:
    """The line was lost for a moment and the host goes back: what answers now is not the one that was to be proved."""
    way = begin(box)
    assert way.stands()
    box.records.transport.run("systemctl start ddtree-vllm-way-back.service")
    assert not way.stands()
    assert not way.close()
    assert box.in_place() == "r1"
    way = begin(box)
    assert way.close()
    box.records.transport.run("systemctl start ddtree-vllm-way-back.service")
    assert box.in_place() == "r2"


def test_one_that_fell_silent_before_does_not_end_the_next_ones_switch(box: Box) -> None:
    """Its line is neither alive nor closed: the next deployer comes while the host still waits for the first."""
    lost = begin(box)
    lost.take()
    way = begin(box)
    assert lost._line is not None
    lost._line.close()
    time.sleep(0.5)
    assert way.stands()
    assert box.in_place() == "r2"
    assert way.close()


@pytest.mark.parametrize("renamed", [0, 1, 3])
def test_a_way_back_that_was_cut_short_is_gone_to_its_end(box: Box, renamed: int) -> None:
    """The box was switched off while the files were put back: some have their names again."""
    way = begin(box)
    os.replace(box.layout.way_back, f"{box.layout.way_back}.begun")
    for file in installed(box.layout)[:renamed]:
        os.replace(file.path + OLD, file.path)
    way.take()
    assert box.in_place() == "r1"
    assert not list(Path(box.layout.state).glob("way-back.sh*"))
    way.end()


def test_one_that_did_not_run_is_put_back_and_not_started(box: Box) -> None:
    box.records.stage(box.new, box.before)
    box.records.put_in_place()
    box.records.transport.run("sh", stdin=box.script(comes_back=False).encode())
    assert box.in_place() == "r1"
    assert [line.split()[0] for line in box.asked()] == ["stop"]


def test_before_a_first_deployment_there_was_nothing_or_another_unit(box: Box) -> None:
    Path(box.records.folder, "active").unlink()
    box.records.transport.run("sh", stdin=box.script(before=False, foreign="mtp.service").encode())
    assert not [file.path for file in installed(box.layout) if Path(file.path).exists()]
    assert "start mtp.service" in box.log.read_text()
