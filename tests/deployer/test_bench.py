"""The bench's arms, prompts and numbers: which, with what, reported with what they do not say."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bench_host import LINES, cell, conditions, inventory, results
from material import REPOSITORY

from deployer.bench.arms import Arm, arms, usual
from deployer.bench.client import client_command, watch_command
from deployer.bench.measured import cards, measured
from deployer.bench.model import ArmLine
from deployer.bench.place import Bench
from deployer.bench.prompts import BUNDLED, MIXED, PromptSet, named, texts
from deployer.bench.result import BenchRegression, judge, summed_up
from deployer.bench.table import CPU_REMARK, table
from deployer.errors import DeployError, UsageError
from deployer.inventory.model import Inventory
from deployer.inventory.secret import Secret
from deployer.serve import metrics
from deployer.serve.decoding import autoregressive
from deployer.serve.options import TABLE, from_yaml
from deployer.serve.render import Engine

ENGINE = Engine("/opt/ddtree/releases/r1/venv", "/models/target", "/models/drafter", autoregressive())
PROMPTS = PromptSet("p", ("one", "two"))


def made(subject: Inventory, *names: str) -> tuple[Arm, ...]:
    return arms(subject, Bench.of(subject), ENGINE, names or usual(subject), nodes=(), secrets={})


def test_arms_differ_in_how_they_decode_and_in_nothing_else() -> None:
    plain, mtp, chain, tree = (from_yaml(arm.files.config) for arm in made(inventory(), "ar", "mtp", "chain", "tree"))
    assert "speculative-config" not in plain
    assert mtp["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert chain["speculative-config"]["num_speculative_tokens"] == 7
    assert tree["speculative-config"]["num_speculative_tokens"] == 15
    own = {"speculative-config", "worker-cls", "additional-config", "attention-backend"}
    assert [{k: v for k, v in arm.items() if k not in own} for arm in (mtp, chain, tree)] == [plain] * 3


def test_a_tree_switched_off_is_not_measured_unless_it_is_asked_for_and_a_head_only_where_there_is_one() -> None:
    without = inventory(tree={"enabled": False}, bench={"chain_tokens": 3})
    assert [arm.name for arm in made(without)] == ["ar", "chain:3"]
    assert [arm.name for arm in made(without, "tree:31", "chain")] == ["tree:31", "chain:3"]
    assert usual(inventory(), mtp=True) == ("ar", "mtp", "chain", "tree")


def test_arms_are_named_with_their_numbers_and_the_same_twice_is_once() -> None:
    found = made(inventory(), "chain:3", "chain:7", "chain", "tree:15", "tree:63", "mtp:1")
    assert [arm.name for arm in found] == ["chain:3", "chain:7", "tree:15", "tree:63", "mtp:1"]
    assert [arm.line.tokens for arm in found] == [3, 7, 15, 63, 1]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eagle", "is no arm"),
        ("ar:3", "is no arm"),
        ("chain:0", "is no arm"),
        ("mtp:2@4", "is no arm"),
        ("tree:31@0", "is no arm"),
        ("chain:0@4", "a chain of no tokens"),
        ("chain:8", "predicts 7 tokens"),
        ("chain:7@2+8@4", "predicts 7 tokens, not 8"),
        ("tree:64", "at most 63"),
        ("tree:31@4+15@2", "do not go up"),
    ],
)
def test_an_arm_that_cannot_be_is_named_before_anything_is_loaded(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made(inventory(), name)


def test_an_arms_tokens_may_change_with_the_batch_and_fewer_nodes_than_the_drafters_width_are_a_shorter_spine() -> None:
    found = made(inventory(), "tree:31@2+15@4+0@8", "tree:3", "tree:0", "chain:7@2+7@4+3@8", "tree:15@1")
    speculative = [from_yaml(arm.files.config)["speculative-config"] for arm in found]
    assert [(one["num_speculative_tokens"], one.get(TABLE)) for one in speculative] == [
        (31, [[1, 2, 31], [3, 4, 15], [5, 8, 0]]),
        (7, [[1, 1, 3]]),
        (7, [[1, 1, 0]]),
        (7, [[1, 4, 7], [5, 8, 3]]),
        (15, None),
    ]
    assert [arm.name for arm in found] == ["tree:31@2+15@4+0@8", "tree:3", "tree:0", "chain:7@4+3@8", "tree:15"]
    assert found[0].line.title == "tree, budget 31 up to 2 requests, 15 up to 4 requests, 0 above"
    assert found[3].line.title == "DFlash chain, K=7 up to 4 requests, 3 above"
    assert [arm.proof.kind for arm in found] == ["tree", "tree", "autoregressive", "chain", "tree"], (
        "a request alone has no drafts where none are scheduled: nothing to prove"
    )


def test_a_table_of_the_bench_and_one_of_the_inventorys_own_options_are_not_mixed() -> None:
    own = inventory(serve={"options": {"speculative-config": {TABLE: [[1, 8, 15]]}}})
    assert from_yaml(made(own, "tree:31")[0].files.config)["speculative-config"][TABLE] == [[1, 8, 15]]
    with pytest.raises(UsageError, match=f"must not set {TABLE}"):
        made(own, "tree:31@2+15@8")


def test_on_a_host_that_makes_no_namespaces_arms_and_client_do_without_them_too() -> None:
    subject, softer = inventory(), ("ProtectSystem", "PrivateTmp")
    for arm in arms(subject, Bench.of(subject), replace(ENGINE, softer=softer), ["ar", "tree"], nodes=(), secrets={}):
        assert "\nProtectSystem=no\nPrivateTmp=no\n" in arm.files.dropin
    cell = conditions()
    command = client_command(subject, Bench.of(subject), "vllm", "/models/target", cell, PROMPTS, "cell.json", softer)
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


def words(subject: Inventory, prompts: PromptSet = PROMPTS, **under: Any) -> list[str]:
    bench, under = (
        Bench.of(subject),
        {"concurrency": 2, "requests": 4, "output_tokens": 32, "chat_template": False, **under},
    )
    command = client_command(
        subject, bench, f"{ENGINE.venv}/bin/vllm", ENGINE.target, conditions(**under), prompts, "cell.json"
    )
    return shlex.split(command)


def test_the_client_asks_over_loopback_without_a_shell_and_with_every_misleading_default_set() -> None:
    found = words(inventory())
    assert found[0] == "systemd-run"
    options = dict(pairwise(found))
    assert options["--temperature"] == "0"
    assert options["--num-prompts"] == "4"
    assert options["--custom-output-len"] == "32"
    assert options["--max-concurrency"] == "2"
    assert options["--metric-percentiles"] == "10,50,90,99"
    assert options["--percentile-metrics"] == "ttft,tpot,e2el", "no ITL: a step's tokens come in one chunk"
    assert options["--seed"] == dict(pairwise(words(inventory(), seed=7)))["--seed"], "the same prompts in every round"
    assert options["--base-url"] == "http://127.0.0.1:8001"
    assert {"User=ddtree", "NoNewPrivileges=yes", "IPAddressDeny=any"} <= set(found)
    assert {"--disable-shuffle", "--skip-chat-template", "--save-detailed"} <= set(found)
    assert "--skip-chat-template" not in words(inventory(), chat_template=True)


def test_the_models_own_sampling_is_the_servers_to_choose_and_sampling_is_seeded() -> None:
    own, warm = words(inventory(), temperature="own", seed=7), words(inventory(), temperature="0.7", seed=7)
    assert "--temperature" not in own
    assert dict(pairwise(warm))["--temperature"] == "0.7"
    assert [json.loads(dict(pairwise(found))["--extra-body"]) for found in (own, warm)] == [{"seed": 7}] * 2
    assert "--extra-body" not in words(inventory())


def test_a_data_set_of_vllms_own_is_passed_through_with_its_options() -> None:
    prompts = named("vllm:random,random-input-len=64", inventory())
    found = dict(pairwise(words(inventory(), prompts)))
    assert (found["--dataset-name"], found["--random-input-len"], found["--output-len"]) == ("random", "64", "32")
    assert "--dataset-path" not in found
    for wrong in ("vllm:", "vllm:no-such-set", "vllm:random,seed=3", "vllm:random,input-len"):
        with pytest.raises(UsageError, match="no data set"):
            named(wrong, inventory())


def test_a_service_with_an_api_key_is_asked_with_it_and_no_command_line_has_it() -> None:
    """The engine guards its API with VLLM_API_KEY; the client reads the same key by another name, from a file."""
    subject = inventory()
    secret = {"VLLM_API_KEY": Secret("s3cret")}
    keyed = arms(subject, Bench.of(subject), ENGINE, ["ar", "mtp"], nodes=(), secrets=secret)
    assert {arm.client.reveal() for arm in keyed} == {'OPENAI_API_KEY="s3cret"\n'}
    assert {arm.client.reveal() for arm in made(subject)} == {""}
    assert f"EnvironmentFile={Bench.of(subject).client_environment}" in words(subject)


def test_the_gpus_are_watched_by_a_unit_that_ends_by_itself() -> None:
    command = watch_command(Bench.of(inventory()))
    assert "command -v nvidia-smi >/dev/null || exit 0" in command
    assert "RuntimeMaxSec=3600" in command


def test_prompts_come_from_the_inventorys_file_and_are_repeated_in_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two", "output_tokens": 3}\n')
    found = named("", inventory(bench={"prompts": path}))
    assert (found.name, found.prompts, found.chat) == ("mine", ("one", "two"), False)
    assert [json.loads(line)["prompt"] for line in found.jsonl(3).splitlines()] == ["one", "two", "one"]
    assert named(str(path), inventory()) == found
    assert texts(inventory(bench={"prompts": None})) == MIXED
    assert found.digest(4) == PROMPTS.digest(4) != found.digest(3)


@pytest.mark.parametrize("line", ["no json", '{"text": "x"}', '{"prompt": 3}', '{"prompt": ""}', "[]"])
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "one"}}\n{line}\n')
    with pytest.raises(UsageError, match="line 2"):
        texts(inventory(bench={"prompts": path}))


def test_a_set_that_does_not_exist_is_an_error_that_lists_those_that_do() -> None:
    with pytest.raises(UsageError, match="no prompt set 'poetry'") as caught:
        named("poetry", inventory())
    assert all(name in caught.value.remedy for name in BUNDLED)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_set_has_forty_prompts_of_its_own_kind(name: str) -> None:
    found = named(name, inventory())
    assert len(set(found.prompts)) == len(found.prompts) == 40
    assert found.chat
    words = [len(prompt.split()) for prompt in found.prompts]
    assert min(words) > 3500 if name == "long" else max(words) < 150
    assert len({len(prompt) for prompt in found.prompts}) > 20, "of many lengths"


def test_a_long_prompt_names_documents_that_are_in_it_and_no_two_begin_alike_by_chance() -> None:
    prompts = named("long", inventory()).prompts
    for prompt in prompts:
        listed = [line.removeprefix("- ") for line in prompt.splitlines() if line.startswith("- ")]
        assert len(listed) >= 3
        assert all(f'<document title="{title}">' in prompt for title in listed)
        assert prompt.count("<document ") == 10
    assert len({prompt[:200] for prompt in prompts}) == 10


def test_the_sets_are_installed_with_the_program() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    room = REPOSITORY / "deployer/bench"
    packed = {path for pattern in project["package-data"]["deployer.bench"] for path in room.glob(pattern)}
    assert packed == {path for path in room.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}


CLIENT: dict[str, Any] = {
    "completed": 2,
    "failed": 0,
    "duration": 3.0,
    "total_input_tokens": 40,
    "total_output_tokens": 128,
    "output_throughput": 42.7,
    "generated_texts": ["x", "y"],
    **{f"p{rank}_{name}_ms": rank / 10 for rank in (10, 50, 90, 99) for name in ("ttft", "tpot", "e2el")},
}
COUNTED = metrics.parse(
    f"{metrics.DRAFTS} 10\n{metrics.ACCEPTED} 45\n{metrics.TREES} 10\n{metrics.NODES} 150\n{metrics.OFF_SPINE} 9\n"
    + "".join(f'{metrics.PER_DEPTH}{{depth="{depth}"}} {10 - depth}\n' for depth in (1, 2))
)


def test_acceptance_is_from_the_counters_and_time_from_the_client() -> None:
    seen = measured(conditions(), CLIENT, COUNTED, (), 61.04)
    assert seen.acceptance_length == 5.5
    assert (seen.trees, seen.nodes, seen.accepted_off_spine) == (10, 150, 9)
    assert seen.off_spine_share == pytest.approx(0.2)
    assert seen.accepted_by_depth == (0.9, 0.8)
    assert (seen.tpot.p10, seen.tpot.p50, seen.tpot.p99) == (1.0, 5.0, 9.9)
    assert seen.step_ms == pytest.approx(27.5)
    assert seen.load_seconds == 61.0
    assert len(set(seen.outputs)) == 2


def test_what_was_sampled_is_not_kept_for_comparison() -> None:
    assert measured(conditions(temperature="0.7"), CLIENT, COUNTED, (), 1.0).outputs == ()


def test_requests_that_failed_are_no_measurement_and_the_first_ones_error_is_shown() -> None:
    client = {**CLIENT, "failed": 1, "errors": ["", "Traceback\nValueError: too long\n"]}
    with pytest.raises(DeployError, match=r"1 of 3 requests of the tree:15 arm failed: code, 1 at a time") as caught:
        measured(conditions(), client, COUNTED, (), 1.0)
    assert "ValueError: too long" in caught.value.remedy


def test_what_nvidia_smi_saw_is_kept_by_card_and_what_it_does_not_know_is_none() -> None:
    log = "0, 40000, 100.5, 1700, 60\n1, 39000, [N/A], 1500, 61\n0, 41000, 200.5, 1800, 66\n1, 39000, [N/A], 1600, 62\nx\n"
    first, second = cards(log)
    assert (first.memory_mib, first.watts, first.sm_mhz, first.celsius) == (41000, 150.5, 1750, 66)
    assert (second.index, second.watts) == (1, None)
    assert cards("") == ()


GREEDY = (cell("ar", 20.0), cell("chain:7", 8.0), cell("tree:15", 10.0))


def test_each_arm_in_a_line_over_its_rounds() -> None:
    again = cell("tree:15", 12.0, round=2, seen={"acceptance_length": 6.5, "drafts": 10, "accepted_by_depth": (1.0,)})
    other = cell("tree:15", 99.0, concurrency=8)
    [tree] = summed_up(LINES, [cell("tree:15", 10.0), again, other])
    assert (tree.name, tree.title, tree.requests, tree.drafts) == ("tree", "tree, budget 15", 8, 40)
    assert tree.acceptance_length == pytest.approx(1 + (4.5 * 30 + 5.5 * 10) / 40)
    assert tree.by_position == (pytest.approx((0.9 * 30 + 10) / 40), pytest.approx(0.8 * 30 / 40))
    assert tree.tpot.median == 11.0
    assert summed_up(LINES, []) == []


def test_a_tree_that_accepts_less_than_its_own_spine_is_a_regression_of_exit_code_9() -> None:
    judge(LINES, GREEDY, 7)
    judge(LINES, GREEDY[:2], 7)
    with pytest.raises(BenchRegression) as caught:
        judge(LINES, (*GREEDY[:2], cell("tree:15", 10.0, seen={"acceptance_length": 4.8})), 7)
    assert caught.value.exit_code == 9
    with pytest.raises(BenchRegression, match="no tree"):
        judge(LINES, (GREEDY[1], cell("tree:15", 10.0, seen={"trees": 0})), 7)


def test_a_tree_without_room_for_the_whole_chain_and_sampled_texts_are_not_held_against_it() -> None:
    longer = LINES[1].model_copy(update={"tokens": 16})
    poor = cell("tree:15", 10.0, seen={"acceptance_length": 4.0})
    judge((LINES[0], longer, LINES[2]), (GREEDY[1], poor), 16)
    warm = {"temperature": "0.7"}
    judge(LINES, (cell("chain:7", 8.0, **warm), cell("tree:15", 9.0, seen={"acceptance_length": 4.0}, **warm)), 7)


def test_a_chain_shorter_than_the_drafter_predicts_is_in_no_tree_and_may_be_the_luckier_one() -> None:
    arms = [ArmLine(name=f"{kind}:{n}", title="", tokens=n) for kind, n in (("chain", 7), ("chain", 15), ("tree", 15))]
    accepts = {"chain:7": 3.2, "chain:15": 3.0, "tree:15": 3.0}
    cells = [cell(arm, 10.0, seen={"acceptance_length": length}) for arm, length in accepts.items()]
    judge(arms, cells, 15)
    with pytest.raises(BenchRegression, match=r"accepts 3\.00 tokens a step, the chain 3\.20"):
        judge(arms, cells, 7)


def test_the_table_shows_acceptance_beside_speed_and_says_what_a_cpu_does_not() -> None:
    text = table(results(*GREEDY, build="cpu"))
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert "5.00" in lines["DFlash chain, K=7"]
    assert "2.50x" in lines["DFlash chain, K=7"]
    assert "100%" in lines["tree, budget 15"]
    assert text.splitlines()[0].strip() == "bench: code, greedy, 1 at a time"
    assert CPU_REMARK in text.replace("\n", " ")
    assert "interpreter" not in table(results(*GREEDY))


def test_the_table_shows_how_far_the_rounds_lie_apart() -> None:
    text = table(results(*GREEDY, cell("tree:15", 14.0, round=2)))
    assert "85.7 (71.4-100.0)" in text
