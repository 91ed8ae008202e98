"""A sweep on a host, which is a stand-in: its order, what it keeps, what it goes on with, and the service put back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from bench_host import ARM, HELD, IDLE, SERVICE, BenchHost, Box, cell, inventory
from material import recorded

from deployer.bench.estimate import Estimate, duration, estimate
from deployer.bench.plan import plan, scene
from deployer.bench.report import results
from deployer.bench.sweep import Sweep, loads, sweep_of
from deployer.errors import DeployError, PreflightError, TransferError, UsageError
from deployer.facts import confinement
from deployer.inventory.model import Inventory
from deployer.plan.apply import Silent, run
from deployer.plan.step import Plan
from deployer.push.model import SUMS
from deployer.push.published import fingerprint_command
from deployer.serve.gate import Clock
from deployer.transport.local import LocalTransport


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Clock, "__init__", lambda self: self.__dict__.update(now=lambda: 0.0, sleep=lambda seconds: None)
    )


@pytest.fixture
def box() -> Box:
    return Box(gpus="")


@pytest.fixture
def host(box: Box) -> BenchHost:
    return BenchHost(box)


def swept(subject: Inventory | None = None, **asked: Any) -> Sweep:
    return sweep_of(subject or inventory(), **asked)


def applied(made: Plan, said: list[str] | None = None) -> Plan:
    class Listening(Silent):
        def say(self, line: str) -> None:
            if said is not None:
                said.append(line)

    run(made, Listening())
    return made


def ran(box: Box) -> list[str]:
    """The clients' runs."""
    return [line for line in box.log if re.match(r"\S+ c\d", line)]


def on_gpus() -> Inventory:
    return inventory(install={"build": "cuda"})


def test_every_combination_is_measured_once_a_round_and_the_arms_take_turns(host: BenchHost, box: Box) -> None:
    sweep = swept(arms="ar,tree", concurrency="1,2", temperature="0,own", rounds=2)
    applied(plan(inventory(), host, sweep=sweep))
    each = ["c1 T0", "c2 T0", "c1 Town", "c2 Town"]
    assert ran(box) == [f"{arm} {what}" for arm in ("ar", "tree:15", "tree:15", "ar") for what in each]
    assert [line for line in box.log if line.startswith("start")] == ["start ar", "start tree:15", "start ar"]
    assert len(host.cells) == 16
    assert box.active == {SERVICE: True, ARM: False}
    assert f"stop {SERVICE}" not in box.log


def test_one_load_gives_up_the_turns_for_fewer_starts() -> None:
    sweep = swept(arms="ar,chain,tree", rounds=3)
    cells = sweep.conditions(["ar", "chain:7", "tree:15"], template=False)
    turns = [load.arm for load in loads(cells)]
    assert turns == ["ar", "chain:7", "tree:15", "chain:7", "ar", "chain:7", "tree:15"]
    once = loads(cells, one_load=True)
    assert [load.arm for load in once] == ["ar", "chain:7", "tree:15"]
    assert [cell.round for cell in once[0].cells] == [1, 2, 3]


def test_a_cell_has_requests_enough_to_fill_its_batch_and_every_round_another_seed() -> None:
    cells = swept(concurrency="1,8", rounds=2).conditions(["ar"], template=True)
    assert [(cell.concurrency, cell.requests) for cell in cells] == [(1, 4), (8, 16), (1, 4), (8, 16)]
    assert cells[0].seed != cells[2].seed


def test_a_chat_template_is_put_around_prompts_that_are_meant_for_one_where_the_target_has_one(box: Box) -> None:
    subject = inventory(bench={"prompts": None})
    assert not scene(subject, BenchHost(box)).cells[0].chat_template
    box.template = True
    assert scene(subject, BenchHost(box)).cells[0].chat_template
    assert not scene(inventory(), BenchHost(box)).cells[0].chat_template, "the inventory's own prompts are raw texts"


def test_an_arm_and_its_client_are_as_confined_as_the_host_allows_the_service(host: BenchHost, box: Box) -> None:
    box.confinement = recorded("unit_no_nesting.txt")
    applied(plan(inventory(), host, sweep=swept(arms="ar")))
    dropin = host.written[f"/run/systemd/system/{ARM}.service.d/10-build.conf"].decode()
    softer = confinement.parse(box.confinement)
    assert softer is not None
    assert softer.softer
    assert all(f"\n{name}=" in dropin for name in softer.softer)
    client = next(command for command in host.commands if "bench serve" in command)
    assert not [name for name in softer.softer if f"{name}=" in client]
    assert "NoNewPrivileges=yes" in client


def test_the_targets_own_head_is_an_arm_where_it_has_one(host: BenchHost) -> None:
    assert [arm.name for arm in scene(inventory(), host, mtp=True).arms] == ["ar", "mtp:2", "chain:7", "tree:15"]
    host.answers = {re.compile(r"^cat .*/config\.json 2"): "{}"} | host.answers
    assert [arm.name for arm in scene(inventory(), host, mtp=True).arms] == ["ar", "chain:7", "tree:15"]


def test_a_finished_sweep_is_not_repeated_and_a_changed_condition_is_not_taken_for_the_same(
    host: BenchHost, box: Box
) -> None:
    applied(plan(inventory(), host))
    again = plan(inventory(), host)
    assert again.pending == ()
    assert [step.title for step in again.steps] == ["ar", "chain:7", "tree:15"]
    for changed in (
        inventory(bench={"output_tokens": 48}),
        inventory(bench={"num_prompts": 5}),
        inventory(bench={"prompts": None}),
        inventory(serve={"options": {**inventory().serve.options, "max-num-seqs": 4}}),
    ):
        assert plan(changed, host).pending[-1].title == "ar, chain:7, tree:15"
    assert plan(inventory(tree={"budget": 31}), host).pending[-1].title == "tree:31"
    box.files = {path: data for path, data in box.files.items() if "r1-chain" not in path}
    assert plan(inventory(), host).pending[-1].title == "chain:7"


def test_another_release_is_measured_again(host: BenchHost) -> None:
    applied(plan(inventory(), host))
    state = host.answers.pop(
        next(key for key in host.answers if getattr(key, "pattern", "").startswith("systemctl show"))
    )
    assert callable(state)
    other = re.compile("systemctl show .*LoadState", re.S)
    host.answers[other] = lambda command: str(state(command)).replace("releases/r1", "releases/r2")
    assert len(plan(inventory(), host).pending) > 0


def test_a_sweep_that_was_cut_goes_on_with_what_is_missing(host: BenchHost, box: Box) -> None:
    def cut(what: str) -> None:
        if what == "chain:7 c2 T0":
            raise KeyboardInterrupt

    box.before_client = cut
    sweep = swept(concurrency="1,2")
    with pytest.raises(KeyboardInterrupt):
        applied(plan(inventory(), host, sweep=sweep))
    assert ran(box) == ["ar c1 T0", "ar c2 T0", "chain:7 c1 T0"]
    assert not box.active[ARM], "the arm is stopped"
    cleared = [
        command for command in host.commands if command.startswith("sudo systemctl stop ddtree-vllm-bench-client")
    ]
    assert "rm -rf /run/systemd/system/ddtree-vllm-bench.service" in cleared[-1], "and nothing of it is left"
    box.before_client, box.log = lambda what: None, []
    made = plan(inventory(), host, sweep=sweep)
    assert next(step.reason for step in made.steps if step.title == "chain:7").startswith("measured 1 of 2: ")
    applied(made)
    assert ran(box) == ["chain:7 c2 T0", "tree:15 c1 T0", "tree:15 c2 T0"]


def test_a_file_of_results_that_was_damaged_is_measured_again(host: BenchHost, box: Box) -> None:
    applied(plan(inventory(), host))
    box.files[host.cells[0]] = b'{"conditions": {}\n'
    assert len(plan(inventory(), host).pending) > 0


def test_one_arm_that_fails_costs_the_others_nothing_and_is_the_error_at_the_end(host: BenchHost, box: Box) -> None:
    def fail(what: str) -> None:
        if what.startswith("ar"):
            raise DeployError("the engine is gone")

    box.before_client, said = fail, list[str]()
    with pytest.raises(DeployError, match="the engine is gone"):
        applied(plan(inventory(), host, sweep=swept(rounds=2)), said)
    assert ran(box) == ["chain:7 c1 T0", "tree:15 c1 T0", "tree:15 c1 T0", "chain:7 c1 T0"]
    assert "arm ar failed: the engine is gone" in said
    assert "a line of the journal" in said


def test_a_lost_connection_ends_the_sweep_at_once(host: BenchHost, box: Box) -> None:
    def lost(what: str) -> None:
        raise TransferError("no route")

    box.before_client = lost
    with pytest.raises(TransferError):
        applied(plan(inventory(), host))
    assert [line for line in box.log if line.startswith("start")] == ["start ar"]


def test_gpus_in_use_are_not_taken_without_being_told_and_the_cost_is_said(host: BenchHost, box: Box) -> None:
    box.gpus = HELD
    made = plan(on_gpus(), host)
    assert made.pending == ()
    said = made.steps[-1].reason
    assert "GPU 0, 1 is in use; --take-gpu" in said
    assert "3 measurements and 3 loads of the model, up to 11 minutes each: up to 33 minutes" in said
    assert box.log == []


def test_a_service_that_was_just_started_holds_no_memory_yet_and_is_on_its_gpus_all_the_same(
    host: BenchHost, box: Box
) -> None:
    box.gpus = IDLE
    made = plan(on_gpus(), host)
    assert (made.pending, "the service runs; --take-gpu" in made.steps[-1].reason) == ((), True)
    applied(plan(on_gpus(), host, take_gpu=True))
    assert (box.log[0], box.log[-1]) == (f"stop {SERVICE}", f"start {SERVICE}")
    box.files, box.log, box.active[SERVICE] = {}, [], False
    applied(plan(on_gpus(), host))
    assert f"start {SERVICE}" not in box.log


def held_by(unit: str) -> str:
    return re.sub(r"[\w@-]+\.service", unit, HELD)


def test_an_engine_that_a_killed_bench_left_is_cleared_first_and_never_answers_for_the_next_arm(
    host: BenchHost, box: Box
) -> None:
    box.files[f"/run/systemd/system/{ARM}.service"] = b""
    made = plan(inventory(), host)
    assert "clear" in [step.title for step in made.pending]
    applied(made)
    cleared = next(
        n for n, command in enumerate(host.commands) if command.startswith("sudo systemctl stop ddtree-vllm-bench")
    )
    written = next(n for n, command in enumerate(host.commands) if command.startswith("sudo write /run/"))
    assert cleared < written
    assert "clear" not in [step.title for step in plan(inventory(), host).steps]


@pytest.mark.parametrize("ours_runs", [True, False])
def test_somebody_elses_unit_on_the_gpus_is_never_stopped(host: BenchHost, box: Box, ours_runs: bool) -> None:
    box.gpus, box.active[SERVICE] = held_by("somebody.service"), ours_runs
    with pytest.raises(PreflightError, match=r"somebody\.service") as caught:
        plan(on_gpus(), host, take_gpu=True)
    assert "stops nothing but ddtree-vllm.service" in caught.value.remedy
    assert box.log == []


def test_the_report_has_what_was_measured_until_now_of_what_and_on_what(host: BenchHost) -> None:
    assert results(inventory(), host) is None
    applied(plan(inventory(), host, sweep=swept(arms="ar,tree", rounds=2)))
    found = results(inventory(), host, swept(arms="ar,tree,tree:31", rounds=2))
    assert found is not None
    assert [arm.title for arm in found.arms] == ["autoregressive", "tree, budget 15"]
    assert [cell.conditions.arm for cell in found.file.cells] == ["ar", "tree:15", "tree:15", "ar"]
    subject = found.file.subject
    assert subject.versions == {"vllm": "0.32.0", "torch": "2.13.0+cpu", "python": "3.11", "ddtree_ext": "0.1.0"}
    assert (subject.release, subject.machine.processor, len(subject.drafter.fingerprint)) == ("r1", "a processor", 64)


def test_a_model_is_known_by_its_sums_or_else_by_names_sizes_and_settings(tmp_path: Path) -> None:
    def fingerprint() -> str:
        return LocalTransport().run(fingerprint_command(str(tmp_path))).stdout

    (tmp_path / "model.safetensors").write_bytes(b"1234")
    (tmp_path / "config.json").write_text("{}")
    first = fingerprint()
    assert re.fullmatch("[0-9a-f]{64}  -\n", first)
    (tmp_path / "model.safetensors").write_bytes(b"4321")
    assert fingerprint() == first, "weights are not read"
    (tmp_path / "config.json").write_text("[]")
    second = fingerprint()
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    third = fingerprint()
    (tmp_path / SUMS).write_text("0  model.safetensors\n")
    assert len({first, second, third, fingerprint()}) == 4


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"concurrency": "0"}, "'0' is no number of requests"),
        ({"concurrency": "one"}, "'one'"),
        ({"temperature": "hot"}, "'hot' is no temperature"),
        ({"temperature": "3"}, "'3' is no temperature"),
    ],
)
def test_an_option_that_cannot_be_is_named(asked: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        swept(**asked)


def test_what_the_command_line_does_not_say_is_the_inventorys() -> None:
    own = inventory(bench={"arms": ["ar"], "concurrency": [1, 4], "temperature": ["0", "own"], "rounds": 3})
    sweep = swept(own)
    assert (sweep.arms, sweep.concurrency, sweep.temperatures, sweep.rounds) == (("ar",), (1, 4), ("0", "own"), 3)
    assert inventory(bench={"concurrency": 4}).bench.concurrency == (4,)
    other = swept(
        own, arms="tree:31,chain", temperature="0.70", sets="mixed,vllm:random,random-input-len=8,vllm:sharegpt"
    )
    assert (other.arms, other.temperatures) == (("tree:31", "chain"), ("0.7",))
    assert [prompts.name for prompts in other.sets] == ["mixed", "vllm:random,random-input-len=8", "vllm:sharegpt"]


def test_time_is_estimated_from_what_was_measured_and_from_the_worst_that_was_seen_before() -> None:
    starts = loads(swept(arms="ar", concurrency="1,2").conditions(["ar"], template=False))
    assert estimate(starts, (), "cuda") == Estimate(1, 2, 660.0, None)
    known = estimate(starts, (cell("ar", 10.0), cell("ar", 10.0, round=2)), "cuda")
    assert known.text() == "2 measurements and 1 load of the model: about 2 minutes"
    assert [duration(seconds) for seconds in (40, 660, 7500)] == ["40 s", "11 minutes", "2 h 05 min"]
