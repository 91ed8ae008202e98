"""The main job on the staging box: one file on the laptop becomes a tree-speculative service in CT129, and goes again.

The tests are steps of one story and run in this order.
"""

from __future__ import annotations

import re
import time

import pytest

from tests.e2e.conftest import Deployer

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]


def test_before_anything_the_plan_names_what_would_be_done_and_does_nothing(deployer: Deployer) -> None:
    plan = deployer.ok("up", "--plan").output
    assert "push: send the drafter" in plan
    assert deployer.ct129("ls /opt/ddtree 2>&1").startswith("ls: cannot access")


def test_up_serves_trees_and_shows_what_it_measured(deployer: Deployer) -> None:
    output = deployer.ok("up").output
    assert "autoregressive" in output
    assert "DFlash chain, K=7" in output
    assert "tree, budget 15" in output
    gate = re.search(r"acceptance length (\d+\.\d+), (\d+) trees, (\d+) tokens accepted off the spine", output)
    assert gate, output[-3000:]
    assert float(gate[1]) > 2
    assert int(gate[2]) > 0
    assert int(gate[3]) > 0


def test_a_second_up_changes_nothing_says_why_and_is_quick(deployer: Deployer) -> None:
    again = deployer.ok("up")
    assert "nothing was changed" in again.output
    assert "nothing to send" in again.output
    assert "is complete and verified" in again.output
    assert again.seconds < 20


def test_smoke_is_zero_on_a_box_that_is_up(deployer: Deployer) -> None:
    deployer.ok("smoke")


def test_status_and_logs_speak_of_the_service(deployer: Deployer) -> None:
    assert "acceptance length" in deployer.ok("status").output
    assert "vllm" in deployer.ok("logs").output.lower()


def test_the_service_runs_as_its_own_user_and_comes_back_after_kill_9(deployer: Deployer) -> None:
    assert deployer.ct129("systemctl show -p User --value ddtree-vllm").strip() == "ddtree"
    before = deployer.ct129("systemctl show -p MainPID --value ddtree-vllm").strip()
    deployer.ct129(f"kill -9 {before}")
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        now = deployer.ct129("systemctl show -p MainPID --value ddtree-vllm").strip()
        healthy = deployer.ct129("curl -s -o /dev/null -w %{http_code} http://127.0.0.1:8000/health")
        if now not in {"0", before} and healthy == "200":
            return
        time.sleep(3)
    pytest.fail("the service did not come back:\n" + deployer.ct129("journalctl -u ddtree-vllm -n 40 --no-pager"))


@pytest.mark.full
def test_a_failed_gate_restores_what_served_before(deployer: Deployer) -> None:
    """The same deployment with an answer that nobody gives: exit code 6, and the service before it serves."""
    wrong = deployer.inventory.with_name("wrong.toml")
    wrong.write_text(re.sub(r"(?m)^expect = .*$", 'expect = "no such answer"', deployer.inventory.read_text()))
    config = deployer.ct129("cat /etc/ddtree/ddtree-vllm.yaml")
    text = wrong.read_text().replace("max-num-seqs = 8", "max-num-seqs = 4")
    wrong.write_text(text)
    ran = Deployer(wrong, deployer.lab).run("serve")
    assert ran.code == 6, ran.output[-4000:]
    assert deployer.ct129("cat /etc/ddtree/ddtree-vllm.yaml") == config
    deployer.ok("smoke")


def test_stop_stops_and_uninstall_leaves_nothing_behind(deployer: Deployer) -> None:
    deployer.ok("stop")
    assert deployer.ct129("systemctl is-active ddtree-vllm").strip() == "inactive"
    deployer.ok("uninstall")
    left = deployer.ct129(
        "ls -d /opt/ddtree /etc/ddtree /etc/systemd/system/ddtree-vllm* /var/lib/ddtree-vllm* /var/cache/ddtree-vllm* 2>/dev/null;"
        " id ddtree 2>/dev/null; systemctl list-units --all --no-legend | grep ddtree"
    )
    assert left.strip() == "", left
    running = deployer.ct129("ps -eo args")
    assert "sshd" in running
    assert "vllm" not in running.lower(), running
