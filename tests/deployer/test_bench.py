"""The bench: which arms, measured once, reported with what the numbers do not say."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTransport

from deployer.bench.arms import Arm, Bench, arms, client_command
from deployer.bench.prompts import DEFAULT, as_jsonl, texts
from deployer.bench.result import CPU_REMARK, ArmResult, BenchRegression, Tpot, judge, measured, table
from deployer.bench.run import Runner
from deployer.errors import DeployError, UsageError
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.inventory.secret import Secret
from deployer.plan.apply import Silent
from deployer.serve import metrics
from deployer.serve.decoding import autoregressive
from deployer.serve.options import from_yaml
from deployer.serve.render import Engine
from deployer.transport.base import Result

ENGINE = Engine("/opt/ddtree/releases/r1/venv", "/models/target", "/models/drafter", autoregressive())


def inventory(**changes: dict[str, Any]) -> Inventory:
    data = load("staging").model_dump()
    for section, values in {"tree": {"enabled": True, "budget": 15}, **changes}.items():
        data[section] = {**data[section], **values}
    return Inventory.model_validate(data)


def made(subject: Inventory, prompts: str = "p") -> tuple[Arm, ...]:
    return arms(subject, Bench.of(subject), ENGINE, prompts, nodes=(), secrets={})


def test_three_arms_differ_in_how_they_decode_and_in_nothing_else() -> None:
    plain, chain, tree = (from_yaml(arm.files.config) for arm in made(inventory()))
    assert "speculative-config" not in plain
    assert chain["speculative-config"]["num_speculative_tokens"] == 7
    assert tree["speculative-config"]["num_speculative_tokens"] == 15
    own = {"speculative-config", "worker-cls", "additional-config", "attention-backend"}
    assert [{key: value for key, value in arm.items() if key not in own} for arm in (chain, tree)] == [plain, plain]


def test_a_tree_switched_off_is_not_measured_and_the_chains_length_can_be_chosen() -> None:
    found = made(inventory(tree={"enabled": False}, bench={"chain_tokens": 3}))
    assert [str(arm.decoding) for arm in found] == ["autoregressive", "DFlash chain, K=3"]


def test_on_a_host_that_makes_no_namespaces_arms_and_client_do_without_them_too() -> None:
    subject, softer = inventory(), ("ProtectSystem", "PrivateTmp")
    for arm in arms(subject, Bench.of(subject), replace(ENGINE, softer=softer), "p", nodes=(), secrets={}):
        assert "\nProtectSystem=no\nPrivateTmp=no\n" in arm.files.dropin
    command = client_command(subject, Bench.of(subject), "vllm", "/models/target", softer)
    assert "ProtectSystem" not in command
    assert "PrivateTmp" not in command
    assert "NoNewPrivileges=yes" in command


def test_an_arm_runs_beside_the_service_under_the_same_account_and_does_not_come_back() -> None:
    subject = inventory()
    arm, bench = made(subject)[0], Bench.of(subject)
    assert bench.layout.unit == "ddtree-vllm-bench.service"
    assert bench.port == subject.serve.port + 1
    assert "User=ddtree\n" in arm.files.unit
    assert "StateDirectory=ddtree-vllm-bench\n" in arm.files.unit
    assert "CacheDirectory=ddtree-vllm\n" in arm.files.unit
    assert arm.files.dropin.rstrip().endswith("Restart=no")
    assert from_yaml(arm.files.config)["port"] == bench.port


def digests(subject: Inventory, prompts: str = "p") -> dict[str, str]:
    return {arm.name: arm.digest for arm in made(subject, prompts)}


def test_only_what_changes_an_arms_numbers_makes_it_measured_again() -> None:
    before = digests(inventory())
    assert digests(inventory()) == before
    other = digests(inventory(tree={"enabled": True, "budget": 31}))
    assert {name for name in before if before[name] != other[name]} == {"tree"}
    assert set(digests(inventory(), "q").values()).isdisjoint(before.values())
    assert set(digests(inventory(bench={"concurrency": 4})).values()).isdisjoint(before.values())


def test_the_client_asks_greedily_over_loopback_without_a_shell_of_its_own() -> None:
    subject = inventory(bench={"num_prompts": 4, "output_tokens": 32, "concurrency": 2})
    words = shlex.split(client_command(subject, Bench.of(subject), f"{ENGINE.venv}/bin/vllm", ENGINE.target))
    assert words[0] == "systemd-run"
    options = dict(pairwise(words))
    assert options["--temperature"] == "0"
    assert options["--num-prompts"] == "4"
    assert options["--custom-output-len"] == "32"
    assert options["--max-concurrency"] == "2"
    assert options["--base-url"] == "http://127.0.0.1:8001"
    assert {"User=ddtree", "NoNewPrivileges=yes", "IPAddressDeny=any"} <= set(words)


def test_a_service_with_an_api_key_is_asked_with_it_and_no_command_line_has_it() -> None:
    """The engine guards its API with VLLM_API_KEY; the client reads the same key by another name, from a file."""
    subject = inventory()
    keyed = arms(subject, Bench.of(subject), ENGINE, "p", nodes=(), secrets={"VLLM_API_KEY": Secret("s3cret")})
    assert {arm.client.reveal() for arm in keyed} == {'OPENAI_API_KEY="s3cret"\n'}
    assert {arm.client.reveal() for arm in made(subject)} == {""}
    words = shlex.split(client_command(subject, Bench.of(subject), f"{ENGINE.venv}/bin/vllm", ENGINE.target))
    assert f"EnvironmentFile={Bench.of(subject).client_environment}" in words


def test_prompts_come_from_the_inventorys_file_and_are_repeated_in_order(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two", "output_tokens": 3}\n')
    found = texts(inventory(bench={"prompts": path}))
    assert found == ("one", "two")
    assert [json.loads(line)["prompt"] for line in as_jsonl(found, 3).splitlines()] == ["one", "two", "one"]
    assert texts(inventory(bench={"prompts": None})) == DEFAULT


@pytest.mark.parametrize("line", ["no json", '{"text": "x"}', '{"prompt": 3}', '{"prompt": ""}', "[]"])
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "one"}}\n{line}\n')
    with pytest.raises(UsageError, match="line 2"):
        texts(inventory(bench={"prompts": path}))


CLIENT = {
    "completed": 4,
    "failed": 0,
    "total_output_tokens": 128,
    "median_tpot_ms": 5.0,
    "p10_tpot_ms": 4.0,
    "p90_tpot_ms": 7.5,
}
COUNTED = metrics.parse(f"{metrics.DRAFTS} 10\n{metrics.ACCEPTED} 45\n{metrics.TREES} 10\n{metrics.OFF_SPINE} 6\n")


def test_acceptance_is_from_the_counters_and_time_from_the_client() -> None:
    result = measured("tree", "tree, budget 15", 15, CLIENT, COUNTED)
    assert result.acceptance_length == 5.5
    assert (result.trees, result.off_spine) == (10, 6)
    assert result.tpot == Tpot(5.0, 4.0, 7.5)


def test_requests_that_failed_are_no_measurement() -> None:
    with pytest.raises(DeployError, match="1 of 5 requests of the chain arm failed"):
        measured("chain", "chain", 7, {**CLIENT, "failed": 1}, COUNTED)


PLAIN = ArmResult("autoregressive", "autoregressive", 0, 4, 128, Tpot(20.0, 19.0, 21.0), 1.0, (), 0, 0, 0)
CHAIN = ArmResult("chain", "DFlash chain, K=7", 7, 4, 128, Tpot(8.0, 7.0, 9.0), 5.0, (0.9, 0.8), 30, 0, 0)
TREE = ArmResult("tree", "tree, budget 15", 15, 4, 128, Tpot(10.0, 9.0, 12.0), 5.5, (0.95, 0.9), 28, 28, 6)


def test_a_result_reads_back_as_it_was_written() -> None:
    assert ArmResult.from_json(TREE.to_json()) == TREE


def test_a_tree_that_accepts_less_than_its_own_spine_is_a_regression_of_exit_code_9() -> None:
    judge((PLAIN, CHAIN, TREE))
    judge((PLAIN, CHAIN))
    with pytest.raises(BenchRegression) as caught:
        judge((PLAIN, CHAIN, replace(TREE, acceptance_length=4.8)))
    assert caught.value.exit_code == 9
    with pytest.raises(BenchRegression, match="no tree"):
        judge((CHAIN, replace(TREE, trees=0)))


def test_a_tree_without_room_for_the_whole_chain_is_not_held_against_it() -> None:
    judge((replace(CHAIN, tokens=15), replace(TREE, tokens=8, acceptance_length=4.0)))


def test_the_table_shows_acceptance_beside_speed_and_says_what_a_cpu_does_not() -> None:
    text = table((PLAIN, CHAIN, TREE), CPU_REMARK)
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert "5.00" in lines["DFlash chain, K=7"]
    assert "2.50x" in lines["DFlash chain, K=7"]
    assert "10.0 (9.0 to 12.0)" in lines["tree, budget 15"]
    assert " 6 " in lines["tree, budget 15"]
    assert CPU_REMARK in text.replace("\n", " ")
    assert "interpreter" not in table((PLAIN,), None)


def test_an_engine_that_an_interrupted_bench_left_never_answers_for_the_next_arm() -> None:
    """Client and engine are stopped before anything of the arm is written."""
    subject = inventory()
    full = Result("", 1, "", "No space left on device")
    host = FakeTransport({re.compile("^systemctl stop"): "", re.compile("^umask"): full, re.compile("journalctl"): ""})
    runner = Runner(subject, host, Bench.of(subject), ENGINE, ("p",), "{}")
    with pytest.raises(DeployError, match="No space left"):
        runner.run(made(subject)[0], Silent())
    assert host.commands[0].startswith("sudo systemctl stop ddtree-vllm-bench-client.service ddtree-vllm-bench.service")
    assert host.commands[-1] == host.commands[0], "and what was begun is cleared away"
