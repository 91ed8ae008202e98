"""`tune` on a host, which is a stand-in: measured, chosen, confirmed, written once, and read by serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_host import ARM, SERVICE, BenchHost, Box, inventory
from calling import Caller
from tuning import (
    BY_THE_SERVICE,
    WORDS,
    applied,
    asked,
    done,
    ran,
    speed,
)

from deployer.bench.plan import scene
from deployer.errors import DeployError, Exit, PreflightError
from deployer.serve import decoding, tuned
from deployer.serve.options import TABLE, engine_options
from deployer.tune.choose import candidates
from deployer.tune.found import found
from deployer.tune.plan import confirming, measuring, usual_arms, usual_concurrency, writing


def test_what_is_measured_chosen_confirmed_and_written_is_what_serve_runs(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    file = tmp_path / "box.tuned.toml"
    done(asked(file), host)
    arms = ["ar", "chain:7", "tree:7", "tree:31"]
    assert [line.split()[0] for line in ran(box)[::2]] == [
        *(*arms, *reversed(arms)),
        *("ar", "chain:7", "tree:31@1+7@2", "tree:31@1+7@2", "chain:7", "ar"),
    ], "the confirmation's rounds take turns too, and come after all others"
    made = tuned.read(file)
    assert (made.kind, made.tokens, made.table) == ("tree", 31, ((1, 1, 31), (2, 2, 7)))
    assert (made.host, made.release, len(made.drafter)) == ("staging", "r1", 64)
    serving = inventory(tree={"tuned": file})
    how = decoding.served(serving)
    options = engine_options(serving, how, target="/t", drafter="/d", port=1)
    assert options["speculative-config"][TABLE] == [[1, 1, 31], [2, 2, 7]]
    assert options["speculative-config"]["num_speculative_tokens"] == 31
    assert [arm.name for arm in scene(serving, host).arms] == ["ar", "chain:7", "tree:31@1+7@2"], "and bench measures"
    text = file.read_text()
    assert "# Serve tree, budget 31 up to 1 request, 7 above: with 1 request 1.98 times plain decoding" in text
    assert "interpreter" in text, "what a CPU's times are worth is said where they are read"
    assert box.active == {SERVICE: True, ARM: False}


def test_a_second_run_measures_and_writes_nothing(host: BenchHost, box: Box, tmp_path: Path) -> None:
    tune = asked(tmp_path / "box.tuned.toml")
    done(tune, host)
    box.log.clear()
    for stage in (measuring, confirming, writing):
        assert stage(tune, inventory(), host).pending == ()
    assert box.log == []


def test_a_run_that_was_cut_goes_on_with_what_is_missing(host: BenchHost, box: Box, tmp_path: Path) -> None:
    def cut(what: str) -> None:
        if what.startswith("tree:31@1+7@2 c2"):
            raise KeyboardInterrupt

    tune, box.before_client = asked(tmp_path / "box.tuned.toml", rounds=1), cut
    with pytest.raises(KeyboardInterrupt):
        done(tune, host)
    assert not tune.file.exists()
    box.before_client, box.log = lambda what: None, []
    done(tune, host)
    assert ran(box) == ["tree:31@1+7@2 c2 T0", *(f"{arm} c{count} T0" for arm in ("chain:7", "ar") for count in (1, 2))]
    assert tune.file.exists()


def test_an_arm_that_cannot_run_on_this_host_is_left_out_by_name_and_costs_the_others_nothing(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    """As a tree that needs more memory than a card has."""

    def fails(what: str) -> None:
        if what.startswith("tree:31 "):
            raise DeployError("out of memory")

    tune, box.before_client = asked(tmp_path / "box.tuned.toml"), fails
    with pytest.raises(DeployError, match="out of memory"):
        done(tune, host)
    box.log.clear()
    without = replace(tune, sweep=replace(tune.sweep, arms=("ar", "chain:7", "tree:7")))
    done(without, host)
    assert {line.split()[0] for line in ran(box)} == {"ar", "chain:7", "tree:7"}
    assert len(ran(box)) == 2 * 2 * 3, "only the confirmation's"
    assert tuned.read(tune.file).tokens == 7


def test_plain_decoding_needs_no_confirmation_and_is_served_without_a_drafter(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    box.speed = lambda arm, requests: 100.0 if arm == "ar" else 90.0
    tune = asked(tmp_path / "box.tuned.toml")
    done(tune, host)
    assert {line.split()[0] for line in ran(box)} == {"ar", "chain:7", "tree:7", "tree:31"}
    how = decoding.served(inventory(tree={"tuned": tune.file}))
    assert str(how) == "autoregressive"
    assert "speculative-config" not in engine_options(inventory(), how, target="/t", drafter="/d", port=1)


def test_a_choice_that_does_not_hold_gives_way_to_what_does(host: BenchHost, box: Box, tmp_path: Path) -> None:
    """As when the first rounds flattered it, or the table costs what its parts did not."""
    box.speed = lambda arm, requests: 60.0 if "@" in arm else speed(arm, requests)
    tune = asked(tmp_path / "box.tuned.toml")
    done(tune, host)
    seen = found(tune, inventory(), host)
    assert (seen.tuning.choice.arm, seen.tuning.arm) == ("tree:31@1+7@2", "chain:7")
    assert decoding.served(inventory(tree={"tuned": tune.file})) == decoding.Decoding("chain", 7)


def test_gpus_that_the_service_holds_are_not_taken_without_being_told(
    host: BenchHost, box: Box, tmp_path: Path
) -> None:
    box.gpus = BY_THE_SERVICE
    subject, tune = inventory(install={"build": "cuda"}), asked(tmp_path / "box.tuned.toml")
    said = measuring(tune, subject, host).steps[-1].reason
    assert "--take-gpu stops the service" in said
    assert "16 measurements and 7 loads of the model, up to 11 minutes each" in said
    with pytest.raises(PreflightError, match="16 of 16 measurements are missing") as caught:
        confirming(tune, subject, host)
    assert "--take-gpu" in caught.value.remedy


def test_the_service_is_away_once_for_both_measurements(host: BenchHost, box: Box, tmp_path: Path) -> None:
    box.gpus = BY_THE_SERVICE
    subject, tune = inventory(install={"build": "cuda"}), asked(tmp_path / "box.tuned.toml")
    made = measuring(tune, subject, host, take_gpu=True)
    assert made.pending[-1].reason.endswith(
        "then as many rounds again of the choice, plain decoding and the best chains: up to 5 loads more"
    )
    applied(made)
    assert len([line for line in box.log if line.startswith("start ") and SERVICE not in line]) == 7 + 5
    assert [line for line in box.log if SERVICE in line and ARM not in line] == [f"stop {SERVICE}", f"start {SERVICE}"]
    assert (box.log[0], box.log[-1]) == (f"stop {SERVICE}", f"start {SERVICE}")
    assert confirming(tune, subject, host).pending == ()
    assert found(tune, subject, host).tuning.arm == "tree:31@1+7@2"


def test_requests_and_arms_are_those_that_the_engine_can_take() -> None:
    assert usual_concurrency(inventory()) == (1, 2, 4, 8)
    assert usual_concurrency(inventory(serve={"options": {"max_num_seqs": 6}})) == (1, 2, 4, 6)
    assert usual_concurrency(inventory(serve={"options": {"max-num-seqs": 1}})) == (1,)
    assert usual_arms(inventory()) == candidates(7)


# The command line.


def test_the_verb_from_its_plan_to_its_file(call: Caller, named: Path, box: Box, tmp_path: Path) -> None:
    planned = call.json("tune", named, *WORDS, "--plan")
    assert planned.exit_code == Exit.OK, planned.error
    assert [step.state for step in planned.steps or []] == ["unneeded", "pending", "undecided", "undecided"]
    assert (planned.tune, box.log) == (None, [])
    made = call.json("tune", named, *WORDS, "--out", tmp_path / "all.json")
    assert (made.exit_code, made.changed) == (Exit.OK, True), made.error
    assert made.tune is not None
    assert (made.tune.arm, made.tune.table) == ("tree:31@1+7@2", ((1, 1, 31), (2, 2, 7)))
    assert Path(made.tune.file) == tmp_path / "box.tuned.toml"
    assert made.sweep is not None
    assert len(made.sweep.cells) == 8 + 6
    again = call("tune", named, *WORDS, "--plan")
    assert "= tune: box.tuned.toml" in again.stdout
    assert "Serve tree, budget 31 up to 1 request, 7 above" in again.stdout
    (tmp_path / "box.tuned.toml").write_text("# by hand\n")
    assert call.json("tune", named, *WORDS).exit_code == Exit.USAGE
