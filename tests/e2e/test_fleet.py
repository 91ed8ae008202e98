"""Two boxes behind the ecosystem's own router, in the lab: a rolling upgrade under load loses no request.

CT129 and CT130 are the boxes; the router and its clients are on kpro5. The tests are steps of one story and run in this
order. Each engine takes about 2 GB; on two processors an upgrade of both takes some minutes.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import REPO
from tests.faults.tool import Ended, Tool
from tests.lab.box import Lab
from tests.lab.fixture import lab_beside

pytestmark = [pytest.mark.lab, pytest.mark.full, pytest.mark.timeout(7200)]
BOXES = ("129", "130")
URL = "http://127.0.0.1:30000"
EXPECT = "the young captain keeps the lantern"
BEGINNING = "the young captain"  # of the same answer, as far as the clients' few tokens go
CLIENTS = 4


@dataclass
class Tally:
    """What became of the clients' requests; see clients.py."""

    plain: int = 0
    streamed: int = 0
    longest: float = 0.0
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fleet:
    """The installed `ddtree-deploy` with a folder of inventories of its own."""

    folder: Path
    lab: Lab

    def run(self, *words: str) -> Ended:
        environment = {"DDTREE_INVENTORY": str(self.folder)}
        return Tool(*words, folder=self.folder.parent, environment=environment).ended(7200)

    def ok(self, *words: str) -> Ended:
        return self.run(*words).well()

    def edit(self, old: str, new: str, *boxes: str) -> None:
        """The same change in these boxes' files."""
        for box in boxes or BOXES:
            file = self.folder / f"box{box}.toml"
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))

    def inside(self, host: str, command: str) -> str:
        """Output of a command as root in one of the containers, whatever its exit code."""
        argv = self.lab.attach(host, "sh", "-c", command)
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False).stdout

    def config(self, box: str) -> str:
        return self.inside(f"ct{box}", "cat /etc/ddtree/ddtree-vllm.yaml")

    def put(self, host: str, path: str, text: str) -> None:
        """A program of these words in one of the containers."""
        words = ("sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1" && chmod 755 "$1"', "sh", path)
        subprocess.run(self.lab.attach(host, *words), input=text.encode(), check=True, timeout=120)

    def left_of_the_router(self) -> str:
        return self.inside(
            "kpro5",
            "ls -d /opt/ddtree-router /etc/systemd/system/ddtree-router* /var/lib/ddtree-router 2>/dev/null; "
            "id ddtree-router 2>/dev/null; ps -eo args | grep '[v]llm-router'",
        )

    @contextmanager
    def load(self, clients: int) -> Iterator[Tally]:
        """Clients that ask through the router all the while; the tally is there when the block has ended."""
        self.inside("kpro5", "rm -f /run/enough")
        script = (REPO / "tests/e2e/clients.py").read_text()
        words = ("python3", "-c", script, URL, "tiny", "who keeps the lantern?", BEGINNING, str(clients), "/run/enough")
        asking = subprocess.Popen(self.lab.attach("kpro5", *words), stdout=subprocess.PIPE, text=True)
        tally = Tally()
        try:
            yield tally
        finally:
            self.inside("kpro5", "touch /run/enough")
            said, _ = asking.communicate(timeout=900)
        found: dict[str, Any] = json.loads(said)
        tally.plain, tally.streamed, tally.longest = found["plain"], found["streamed"], found["longest"]
        tally.lost = tuple(found["lost"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = lab_beside("fleet", ",".join(BOXES))
    lab.up(afresh=True)
    folder = tmp_path_factory.mktemp("fleet") / "inventory"
    (folder / "routers").mkdir(parents=True)
    for box in BOXES:
        (folder / f"box{box}.toml").write_text(inventory_of(box, lab))
    (folder / "routers/edge.toml").write_text(router_over_the_pair(lab))
    yield Fleet(folder, lab)
    lab.down()


def inventory_of(box: str, lab: Lab) -> str:
    """The repository's staging inventory for one of the two, on the network for the router alone; a short bench."""
    text = (REPO / "inventory/staging.toml").read_text()
    text = text.replace("../build/lab/ssh_config", str(lab.place.ssh_config)).replace('"../', f'"{REPO}/')
    text = text.replace('"profiles/', f'"{REPO}/inventory/profiles/').replace(
        '"staging-', f'"{REPO}/inventory/staging-'
    )
    changes = {
        'name = "staging"': f'name = "box{box}"\ngroups = ["pair"]',
        'host = "ct129"': f'host = "ct{box}"',
        "port = 8000": f'port = 8000\naddress = "10.130.0.{box}"\nallow = ["10.130.0.1"]',
        "gate_timeout = 300": "gate_timeout = 1800",
        "num_prompts = 4": "num_prompts = 1",
        "output_tokens = 32": "output_tokens = 4",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def router_over_the_pair(lab: Lab) -> str:
    return (
        f'name = "edge"\ngroup = "pair"\n\n[ssh]\nhost = "kpro5"\nconfig_file = "{lab.place.ssh_config}"\n\n'
        f'[install]\nsource = "wheelhouse"\nwheelhouse = "{REPO}/build/router-wheels"\n'
    )


def summary(ran: Ended) -> list[str]:
    """The last lines: each host and what it runs now."""
    return [
        " ".join(line.replace(":", " ").split()[:2]) for line in ran.output.splitlines() if re.match(r"box\d+   ", line)
    ][-2:]


def test_two_boxes_are_rolled_out_and_the_router_sends_to_both(fleet: Fleet) -> None:
    assert summary(fleet.ok("up", "--group", "pair", "--rolling")) == ["box129 new", "box130 new"]
    fleet.ok("router", "up", "edge")
    status = fleet.ok("router", "status", "edge").output
    assert len(re.findall(r"http://10\.130\.0\.1(?:29|30):8000 healthy", status)) == 2, status
    again = fleet.ok("router", "up", "edge")
    assert "nothing to do" in again.output
    assert fleet.inside("kpro5", "systemctl show -P User ddtree-router").strip() == "ddtree-router"


def test_a_box_lets_in_the_router_and_nobody_else(fleet: Fleet) -> None:
    ask = "curl -s -m 5 -o /dev/null -w %{http_code} http://10.130.0.129:8000/health"
    assert fleet.inside("kpro5", ask) == "200"
    assert fleet.inside("ct130", ask) == "000"


def test_a_rolling_upgrade_under_load_loses_no_request(fleet: Fleet) -> None:
    fleet.edit("max-num-seqs = 8", "max-num-seqs = 6")
    assert summary(fleet.ok("up", "--group", "pair", "--rolling", "--plan")) == ["box129 pending", "box130 pending"]
    with fleet.load(CLIENTS) as tally:
        rolled = fleet.ok("up", "--group", "pair", "--rolling")
    print(tally)
    assert summary(rolled) == ["box129 new", "box130 new"]
    assert tally.lost == ()
    assert min(tally.plain, tally.streamed) > 10
    for box in BOXES:
        assert "max-num-seqs: 6" in fleet.config(box)
        assert f"box{box} |     router edge sends no more requests here" in rolled.output
        assert f"box{box} |     router edge sends requests here" in rolled.output


def test_a_gate_that_fails_under_load_ends_the_roll_loses_nothing_and_leaves_the_other_box_alone(fleet: Fleet) -> None:
    before = [fleet.config(box) for box in BOXES]
    fleet.edit("max-num-seqs = 6", "max-num-seqs = 4")
    fleet.edit(f'expect = "{EXPECT}"', 'expect = "no such answer"')
    with fleet.load(CLIENTS) as tally:
        rolled = fleet.run("serve", "--group", "pair", "--rolling")
    print(tally)
    assert rolled.code == 6, rolled.output[-4000:]
    assert summary(rolled) == ["box129 old", "box130 untouched"]
    assert tally.lost == ()
    assert [fleet.config(box) for box in BOXES] == before
    status = fleet.ok("router", "status", "edge").output
    assert status.count(" healthy") == 2, status


def test_the_router_goes_without_a_trace_and_the_boxes_serve_on(fleet: Fleet) -> None:
    fleet.ok("router", "uninstall", "edge")
    assert fleet.left_of_the_router() == ""
    for box in BOXES:
        assert fleet.inside(f"ct{box}", "curl -s -o /dev/null -w %{http_code} http://127.0.0.1:8000/health") == "200"
