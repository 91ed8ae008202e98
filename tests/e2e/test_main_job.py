"""The main job on the staging box: one file on the laptop becomes a tree-speculative service in CT129, and goes again.

The tests are steps of one story and run in this order.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e import hub
from tests.e2e.conftest import DRAIN, REPO, Deployer
from tests.faults import table
from tests.faults.cells import SAMPLE
from tests.faults.play import Cell, play
from tests.faults.scene import REPOSITORY, Deployment, Scene
from tests.faults.steps import GATE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]


def test_before_anything_the_plan_names_what_would_be_done_and_does_nothing(deployer: Deployer) -> None:
    plan = deployer.ok("up", "--plan").output
    assert "push: send the drafter" in plan
    assert deployer.ct129("ls /opt/ddtree 2>&1").startswith("ls: cannot access")


def test_doctor_looks_at_this_machine_the_jump_host_and_the_box(deployer: Deployer) -> None:
    """kpro5 is no Proxmox host here: the lab has a stand-in for pct, and no /etc/pve."""
    output = deployer.ok("doctor").output
    places = [output.index(title) for title in ("this machine:", "jump host kpro5 ", "box ct129 ")]
    assert places == sorted(places)
    for subject in ("wheelhouse", "reach", "unit", "disk", "drafter"):
        assert f"ok  {subject} " in output, output


def test_doctor_names_the_hop_that_fails_and_hides_nothing_before_it(deployer: Deployer) -> None:
    deployer.ct129("systemctl stop ssh ssh.socket")
    try:
        ran = deployer.run("doctor")
    finally:
        command = deployer.lab.attach("ct129", "systemctl", "start", "ssh")
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert ran.code == 3
    assert "ok  reach  kpro5" in ran.output
    assert re.search(r"kpro5 cannot reach 10\.130\.0\.129:22", ran.output), ran.output


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
    status = deployer.ok("status").output
    for said in ("acceptance length", "throughput", "models", ", up ", "last change"):
        assert said in status
    assert re.search(r"last change +up by \w+@", status), status
    assert "vllm" in deployer.ok("logs").output.lower()


def test_logs_follow_what_the_service_says_from_now_on(deployer: Deployer) -> None:
    pid = deployer.ct129("systemctl show -P MainPID ddtree-vllm").strip()
    # A line of the journal about the service's process, as root may write one.
    say = rf"printf 'MESSAGE=said %s\nOBJECT_PID={pid}\n' | logger --journald"
    with deployer.started("logs", "-n", "1", "-f") as following:
        assert following.stdout is not None
        lines = iter(following.stdout.readline, "")
        next(lines)  # the one that was there: from here on it follows
        for word in ("first", "second"):
            deployer.ct129(say % word)
            assert any(line.rstrip().endswith(f"said {word}") for line in lines)
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130


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


@contextmanager
def without_namespaces(deployer: Deployer) -> Iterator[None]:
    """CT129's systemd can set up no mount namespace, as in a container without nesting: units that ask end with 226."""
    deployer.ct129("rmdir /run/systemd/unit-root; touch /run/systemd/unit-root")
    try:
        yield
    finally:
        deployer.ct129("rm -f /run/systemd/unit-root; mkdir -m 0700 /run/systemd/unit-root")


def test_a_box_that_makes_no_namespaces_is_told_so_and_would_be_served_softer(deployer: Deployer) -> None:
    with without_namespaces(deployer):
        assert "226/NAMESPACE" in deployer.ct129(
            "systemd-run --wait -p PrivateTmp=yes true; journalctl -n 20 --no-pager"
        )
        checked = deployer.ok("check").output
        assert re.search(r"warn +unit namespaces", checked), checked
        plan = deployer.ok("serve", "--plan").output
    assert re.search(r"= serve: confinement\s+softer than it should be: .*ProtectSystem", plan), plan
    assert "+ serve: start" in plan
    assert "= serve: files" in deployer.ok("serve", "--plan").output, "nesting is back, and nothing is to be done"


@pytest.mark.full
def test_it_is_served_softer_says_so_and_gets_its_confinement_back(deployer: Deployer) -> None:
    with without_namespaces(deployer):
        assert "softer than it should be" in deployer.ok("serve").output
        deployer.ok("smoke")
        assert re.search(r"confinement +softer: without ProtectSystem", deployer.ok("status").output)
        assert deployer.ct129("systemctl show -P ProtectSystem ddtree-vllm").strip() == "no"
    deployer.ok("serve")
    assert deployer.ct129("systemctl show -P ProtectSystem ddtree-vllm").strip() == "strict"


def reconfigured(deployer: Deployer) -> Deployer:
    """The same inventory with one of vLLM's options changed."""
    path = deployer.inventory.with_name("reconfigured.toml")
    path.write_text(deployer.inventory.read_text().replace("max-num-seqs = 8", "max-num-seqs = 6"))
    return Deployer(path, deployer.lab)


def test_another_option_is_said_to_be_one_stop_and_start(deployer: Deployer) -> None:
    plan = reconfigured(deployer).ok("up", "--plan").output
    assert "another configuration: max-num-seqs 8 -> 6; no push, no install, one stop-start" in plan
    assert "+ push" not in plan
    assert "+ install" not in plan


@pytest.mark.full
def test_another_option_is_served_by_one_stop_and_start_and_rolled_back_by_another(deployer: Deployer) -> None:
    def starts() -> int:
        said = deployer.ct129("journalctl --no-pager -o cat _PID=1 UNIT=ddtree-vllm.service | grep -c '^Started '")
        return int(said)

    before, first = starts(), re.search(r"deployment +(\S+) ", deployer.ok("status").output)
    assert first
    changed = reconfigured(deployer)
    changed.ok("serve")
    assert starts() == before + 1
    assert "max-num-seqs: 6" in deployer.ct129("cat /etc/ddtree/ddtree-vllm.yaml")
    changed.ok("rollback", "--to", first[1])
    assert starts() == before + 2
    assert "max-num-seqs: 8" in deployer.ct129("cat /etc/ddtree/ddtree-vllm.yaml")


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


@pytest.fixture
def scene(deployer: Deployer) -> Scene:
    """What serves now, and the same with the plain chain: all of its bench is known already."""
    drafter = REPOSITORY / "build/pairs/hybrid/drafter/model.safetensors"
    chain = deployer.inventory.with_name("chain.toml")
    chain.write_text(deployer.inventory.read_text().replace("budget = 15", "budget = 15\nenabled = false"))
    return Scene(deployer.lab, (Deployment(deployer.inventory, "tree", drafter), Deployment(chain, "chain", drafter)))


@pytest.mark.parametrize(
    "cell", [pytest.param(c, marks=[] if c.step is GATE else pytest.mark.full, id=str(c)) for c in SAMPLE]
)
def test_a_deployer_killed_in_the_middle_loses_nothing(scene: Scene, cell: Cell) -> None:
    """Of the table that `make test-faults` plays: what served before serves, and the next `up` ends well."""
    table.note(cell, "FAILED")
    table.note(cell, str(play(scene, cell)))


def test_the_host_fetches_a_model_from_the_hub_in_a_unit_that_outlives_the_tool(deployer: Deployer) -> None:
    link = "/opt/ddtree/models/from-the-hub"
    fetching = hub.inventory(deployer, link)
    hub.start(deployer, REPO / "build/pairs/hybrid/target")
    try:
        with subprocess.Popen(fetching.command("push"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as tool:
            deadline = time.monotonic() + 120
            while ".part" not in deployer.ct129("ls /opt/ddtree/models/store/*/*.part 2>/dev/null"):
                assert tool.poll() is None
                assert time.monotonic() < deadline
            tool.send_signal(signal.SIGINT)
            said = tool.communicate(timeout=60)[0].decode()
        assert tool.returncode == 130, said
        assert "the fetch goes on there" in said
        assert "running" in deployer.ct129("systemctl list-units --no-legend 'ddtree-vllm-fetch-*'")
        assert "a fetch is under way there" in fetching.ok("push", "--plan").output
        hub.go_on(deployer)
        output = fetching.ok("push").output
        assert "main is commit 0123456789abcdef" in output
    finally:
        hub.stop(deployer)
    assert ": FAILED" not in deployer.ct129(f"cd {link} && sha256sum --check .sha256sums || echo : FAILED")
    assert "nothing to do" in fetching.ok("push").output, "and the hub is not even there any more"
    assert "token" not in deployer.ct129("ls /run")


def ask(deployer: Deployer, tokens: int) -> subprocess.Popen[str]:
    """A completion of so many tokens, asked in CT129; prints its body and how many seconds it took."""
    body = json.dumps({"model": "tiny", "prompt": "who?", "max_tokens": tokens, "ignore_eos": True, "temperature": 0})
    curl = (
        "curl -s -w '\\n%{time_total}' -H 'Content-Type: application/json' http://127.0.0.1:8000/v1/completions -d @-"
    )
    asked = subprocess.Popen(deployer.lab.ssh("ct129", curl), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert asked.stdin is not None
    asked.stdin.write(body)
    asked.stdin.close()
    return asked


def took(asked: subprocess.Popen[str]) -> tuple[dict[str, Any], float]:
    """The body of a completion that was asked, and its seconds."""
    assert asked.stdout is not None
    body, seconds = asked.stdout.read().rsplit("\n", 1)
    asked.wait(60)
    return json.loads(body), float(seconds)


def test_stop_lets_a_running_request_finish(deployer: Deployer) -> None:
    took(ask(deployer, 16))  # the first one after a start is slower than those after it
    _, seconds = took(ask(deployer, 64))
    # A third of what a request is given: more than `stop` takes until systemd hears of it, and room for a slower machine.
    tokens = max(4, min(900, round(64 * DRAIN / 3 / seconds)))
    slow = ask(deployer, tokens)
    while 'num_requests_running{engine="0",model_name="tiny"} 1.0' not in deployer.ct129(
        "curl -s http://127.0.0.1:8000/metrics"
    ):
        assert slow.poll() is None, "the request was over before it was seen"
    stopped = deployer.ok("stop")
    assert slow.poll() is not None, "the request was over before the stop was"
    body, _ = took(slow)
    assert "running requests are let finish" in stopped.output
    assert body["usage"]["completion_tokens"] == tokens
    assert deployer.ct129("systemctl is-active ddtree-vllm").strip() == "inactive"


def test_uninstall_leaves_nothing_behind(deployer: Deployer) -> None:
    deployer.ok("uninstall")
    left = deployer.ct129(
        "ls -d /opt/ddtree /etc/ddtree /etc/systemd/system/ddtree-vllm* /var/lib/ddtree-vllm* /var/cache/ddtree-vllm* 2>/dev/null;"
        " id ddtree 2>/dev/null; systemctl list-units --all --no-legend | grep ddtree"
    )
    assert left.strip() == "", left
    running = deployer.ct129("ps -eo args")
    assert "sshd" in running
    assert "vllm" not in running.lower(), running
