"""What an install would do, from what is on the host. The host is a stand-in that answers from a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTransport

from deployer.errors import InstallError, PreflightError
from deployer.install import plan as room
from deployer.install.lockfile import Lock, Pin
from deployer.install.release import LocalWheel, Release
from deployer.inventory.load import load
from deployer.inventory.model import Inventory
from deployer.plan.apply import Silent, run
from deployer.plan.step import Plan
from deployer.transport.base import Result

ROOT = "/opt/ddtree"
WHEEL = "ddtree_ext-0.1.0-py3-none-any.whl"


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    """A small release in place of the real lock and the wheels built for it."""
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"wheel")
    made = Release("cpu", "3.11", Lock((Pin("torch", "2.13.0+cpu", ("a" * 64,)),)), (LocalWheel(wheel, "b" * 64),))
    monkeypatch.setattr(room, "desired", lambda inventory, transport: made)
    return made


def inventory(**install: Any) -> Inventory:
    data = load("staging").model_dump()
    data["install"] = {**data["install"], "source": "index", **install}
    return Inventory.model_validate(data)


def host(finished: tuple[str, ...], current: str = "", deployed: tuple[str, ...] = (), **more: Any) -> FakeTransport:
    answers: dict[Any, Any] = {
        re.compile(r"^cd .*\*; do"): "",
        re.compile(r"release\.json"): "\n".join(finished) + "\n",
        re.compile(r"^readlink -f"): "".join(f"{ROOT}/releases/{name}\n" for name in deployed),
        re.compile(r"^readlink /"): f"{ROOT}/releases/{current}\n" if current else "",
        re.compile(r"^test -e"): Result("", 1, "", ""),
    }
    return FakeTransport({**answers, **more})


def titles(made: Plan) -> list[str]:
    return [step.title for step in made.pending]


def test_on_a_bare_host_a_release_is_made_verified_and_only_then_current(wanted: Release) -> None:
    assert titles(room.plan(inventory(), host(()))) == ["venv", "verify", "current"]


def test_an_installed_release_is_left_alone_and_every_step_says_why(wanted: Release) -> None:
    made = room.plan(inventory(), host((wanted.identifier,), wanted.identifier))
    assert made.pending == ()
    assert all(step.reason for step in made.steps)


def test_an_earlier_release_that_is_still_there_only_becomes_current_again(wanted: Release) -> None:
    assert titles(room.plan(inventory(), host((wanted.identifier, "cpu-new"), "cpu-new"))) == ["current"]


def test_an_interrupted_install_is_told_from_a_first_one(wanted: Release) -> None:
    begun = host(())
    begun.answers[re.compile(r"^test -e")] = ""
    reasons = {step.title: step.reason for step in room.plan(inventory(), begun).steps}
    assert "interrupted" in reasons["venv"]


def test_old_releases_go_when_a_new_one_comes_but_none_that_a_deployment_needs(wanted: Release) -> None:
    finished = ("cpu-4", "cpu-3", "cpu-2", "cpu-1")
    made = room.plan(inventory(keep=2), host(finished, "cpu-4", ("cpu-4", "cpu-2")))
    reason = next(step.reason for step in made.pending if step.title == "prune")
    assert reason.endswith(": cpu-3, cpu-1")


def test_an_interrupted_install_of_another_release_goes_as_well(wanted: Release) -> None:
    begun = host(("cpu-1",), "cpu-1")
    begun.answers |= {re.compile(r"^cd .*\*; do"): f"cpu-half\n{wanted.identifier}\n"}
    reason = next(step.reason for step in room.plan(inventory(), begun).pending if step.title == "prune")
    assert reason.endswith(": cpu-half")


@pytest.mark.parametrize(("there", "said"), [((), "1 release: "), (("r1",), "2 releases: ")])
def test_what_is_kept_is_counted_in_plain_words(wanted: Release, there: tuple[str, ...], said: str) -> None:
    made = room.plan(inventory(), host(there))
    assert next(step.reason for step in made.steps if step.title == "prune").startswith(said)


def test_a_second_run_prunes_nothing_even_when_the_deployments_have_moved_on(wanted: Release) -> None:
    finished = (wanted.identifier, "cpu-3", "cpu-2", "cpu-1")
    assert room.plan(inventory(keep=1), host(finished, wanted.identifier, (wanted.identifier,))).pending == ()


def test_a_host_whose_python_makes_no_venv_is_told_what_to_install() -> None:
    bare = FakeTransport(
        {re.compile("ensurepip"): Result("", 1, "", "ModuleNotFoundError: No module named 'ensurepip'")}
    )
    with pytest.raises(PreflightError, match="No module named 'ensurepip'") as caught:
        room.desired(inventory(), bare)
    assert "python3-venv" in caught.value.remedy


def test_a_release_that_does_not_prove_itself_stays_incomplete_and_current_stays(
    wanted: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "send_folder", lambda *args, **options: None)
    found = '{"plugins": [], "vllm": "0.32.0", "torch": "2.13.0+cpu", "cuda": null, "ext": "0.1.0", "help": true}'
    box = host((), "cpu-old", **{})
    box.answers |= {re.compile(r"^mkdir|^exec flock"): "", re.compile(r"mktemp"): f"noise\n{found}\n"}
    with pytest.raises(InstallError, match="would not find the plugin ddtree"):
        run(room.plan(inventory(), box), Silent())
    assert not any("rm -f" in command or "mv -Tf" in command for command in box.commands)


def test_pips_own_error_is_what_the_operator_reads(wanted: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "send_folder", lambda *args, **options: None)
    box = host(())

    class Failing(FakeTransport):
        def stream(self, command: str, **options: Any) -> Any:
            if "-m pip install" in command:
                yield "ERROR: No space left on device"
                yield from self._finished(command, _failed(), sudo=False, check=True).stdout
            yield from ()

    failing = Failing({**box.answers, re.compile(r"^mkdir"): ""})
    with pytest.raises(InstallError, match="No space left on device") as caught:
        run(room.plan(inventory(), failing), Silent())
    assert caught.value.exit_code == 5


def _failed() -> Any:
    from deployer.transport.shell import Raw

    return Raw(1, b"", b"pip failed")
