"""The story of test_fleet.py with engines that are stand-ins: the router, the units, the deployer and the two boxes are the
real ones, and a roll takes seconds in place of minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import REPO
from tests.e2e.test_fleet import BOXES, Fleet, inventory_of, router_over_the_pair, summary
from tests.lab.fixture import lab_beside

pytestmark = [pytest.mark.lab, pytest.mark.full, pytest.mark.timeout(1800)]
RELEASE = "/opt/ddtree/releases/stand-in"
# In place of vLLM's own parser, which `serve` asks through the release's Python.
PYTHON = "#!/bin/sh\ncat >/dev/null\necho options-accepted\n"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two boxes with the models pushed and a release that is a stand-in."""
    lab = lab_beside("standin", ",".join(BOXES))
    lab.up(afresh=True)
    folder = tmp_path_factory.mktemp("standin") / "inventory"
    made = Fleet(folder, lab)
    (folder / "routers").mkdir(parents=True)
    (folder / "routers/edge.toml").write_text(router_over_the_pair(lab))
    for box in BOXES:
        (folder / f"box{box}.toml").write_text(inventory_of(box, lab))
        made.put(f"ct{box}", f"{RELEASE}/venv/bin/vllm", (REPO / "tests/lab/stand_in_vllm.py").read_text())
        made.put(f"ct{box}", f"{RELEASE}/venv/bin/python", PYTHON)
        made.put(f"ct{box}", f"{RELEASE}/release.json", "{}")
        made.inside(f"ct{box}", f"ln -sfn {RELEASE} /opt/ddtree/current; chmod -R go+rX /opt/ddtree")
    made.ok("push", "--group", "pair")
    yield made
    lab.down()


def test_a_first_roll_and_a_router_over_both_boxes(fleet: Fleet) -> None:
    assert summary(fleet.ok("serve", "--group", "pair", "--rolling")) == ["box129 new", "box130 new"]
    fleet.ok("router", "up", "edge")
    assert fleet.ok("router", "status", "edge").output.count(" healthy") == 2
    assert "nothing to do" in fleet.ok("router", "up", "edge").output


def test_a_rolling_upgrade_under_load_loses_no_request(fleet: Fleet) -> None:
    fleet.edit("max-num-seqs = 8", "max-num-seqs = 6")
    with fleet.load(8) as tally:
        rolled = fleet.ok("serve", "--group", "pair", "--rolling")
    print(tally)
    assert summary(rolled) == ["box129 new", "box130 new"]
    assert tally.lost == ()
    assert min(tally.plain, tally.streamed) > 10
    assert "requests still run here" in rolled.output
    assert all("max-num-seqs: 6" in fleet.config(box) for box in BOXES)


def test_a_gate_that_fails_under_load_ends_the_roll_and_loses_nothing(fleet: Fleet) -> None:
    fleet.edit("max-num-seqs = 6", "max-num-seqs = 4")
    fleet.edit('expect = "the young', 'expect = "no young')
    with fleet.load(8) as tally:
        rolled = fleet.run("serve", "--group", "pair", "--rolling")
    print(tally)
    assert rolled.code == 6, rolled.output[-4000:]
    assert summary(rolled) == ["box129 old", "box130 untouched"]
    assert tally.lost == ()
    assert all("max-num-seqs: 6" in fleet.config(box) for box in BOXES)
    assert fleet.ok("router", "status", "edge").output.count(" healthy") == 2
    fleet.edit('expect = "no young', 'expect = "the young')
    fleet.edit("max-num-seqs = 4", "max-num-seqs = 6")


def test_a_box_does_not_leave_while_the_other_is_down(fleet: Fleet) -> None:
    fleet.inside("ct130", "systemctl stop ddtree-vllm; sleep 4")
    fleet.edit("max-num-seqs = 6", "max-num-seqs = 5", "129")
    refused = fleet.run("serve", "box129", "--rolling")
    assert refused.code == 3, refused.output
    assert "has no other healthy box" in refused.output
    assert "max-num-seqs: 6" in fleet.config("129")
    assert fleet.inside("ct129", "systemctl is-active ddtree-vllm").strip() == "active"
    fleet.edit("max-num-seqs = 5", "max-num-seqs = 6", "129")
    assert summary(fleet.ok("serve", "--group", "pair", "--rolling")) == ["box129 unchanged", "box130 new"]


def test_a_deployer_that_was_killed_while_its_box_was_out_is_finished_by_the_next_one(fleet: Fleet) -> None:
    """As it leaves things: the box serves, and the router was told to send nothing there."""
    url = "http%3A%2F%2F10.130.0.129%3A8000"
    fleet.inside("kpro5", f"curl -s -X POST 'http://127.0.0.1:30000/remove_worker?url={url}'")
    assert "taken out" in fleet.ok("router", "status", "edge").output
    again = fleet.ok("serve", "box129")
    assert "gets no requests from edge" in again.output
    assert fleet.ok("router", "status", "edge").output.count(" healthy") == 2


def test_the_router_goes_without_a_trace_and_the_boxes_serve_on(fleet: Fleet) -> None:
    fleet.ok("router", "uninstall", "edge")
    assert fleet.left_of_the_router() == ""
    for box in BOXES:
        assert fleet.inside(f"ct{box}", "curl -s -o /dev/null -w %{http_code} http://127.0.0.1:8000/health") == "200"
