"""init: a commented inventory by asking; nothing is overwritten and nothing half written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from calling import Called, Caller

from deployer.cli.init import write_new
from deployer.errors import Exit, UsageError
from deployer.inventory.load import load

# Build, host, jump, GPUs, drafter, profile, target, folder to push, model, port; an empty line takes what is offered.
CUDA = ("", "gpu-box", "bastion,inner", "4", "drafter.safetensors", "", "/models/big", "", "big", "9000")
CPU = ("cpu", "", "", "~/d.safetensors", "p.toml", "/srv/target", "weights", "", "")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(tmp_path)
    return Caller(capsys)


def answering(monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers)))


def made(call: Caller, monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...], *words: str) -> Called:
    answering(monkeypatch, answers)
    return call("init", "box", *words)


def test_the_file_says_what_was_answered_and_loads(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called = made(call, monkeypatch, CUDA)
    assert called.code == 0, called.stderr
    assert called.stdout.endswith("next: ddtree-deploy check box\n")
    assert "SSH host" in called.stderr, "questions go where people read"
    box = load("box")
    assert (box.name, box.ssh.host, box.ssh.jump, box.checks.gpus) == ("box", "gpu-box", "bastion,inner", 4)
    assert (box.install.build, box.target.path, box.target.push) == ("cuda", "/models/big", None)
    assert (box.serve.served_model_name, box.serve.port) == ("big", 9000)
    assert box.drafter.file == tmp_path / "drafter.safetensors", "a path starts where it was typed"
    assert box.drafter.profile == "z-lab/Qwen3.6-27B-DFlash"


def test_a_cpu_host_with_a_target_to_push(call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert made(call, monkeypatch, CPU).code == 0
    box = load("box")
    assert (box.ssh.host, box.ssh.jump, box.install.build, box.checks.gpus) == ("box", None, "cpu", 0)
    assert box.target.push == tmp_path / "weights"
    assert box.drafter.file == Path.home() / "d.safetensors"
    assert box.drafter.profile == str(tmp_path / "p.toml")


def test_every_section_is_explained_and_what_may_be_wanted_next_is_there_to_uncomment(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made(call, monkeypatch, CUDA)
    path = tmp_path / "inventory/box.toml"
    lines = path.read_text().splitlines()
    assert sum("#" in line for line in lines) > 15
    offered = [line[2:] for line in lines if line.startswith("# ") and (" = " in line or line.startswith("# ["))]
    path.write_text("\n".join(offered_or_own(lines, offered)))
    full = load("box")
    assert full.serve.secrets["VLLM_API_KEY"].env == "DEPLOY_API_KEY"
    assert full.notify.command == ("/usr/local/bin/tell-the-team",)
    assert full.groups == ("production",)


def offered_or_own(lines: list[str], offered: list[str]) -> list[str]:
    """The file with everything uncommented that it offers, but for prose and what the answers decided."""
    skipped = ("push = ", "jump = ", "wheelhouse = ")
    return [line[2:] if line[2:] in offered and not line[2:].startswith(skipped) else line for line in lines]


def test_an_existing_file_is_refused_before_the_first_question(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "elsewhere/box.toml"
    path.parent.mkdir()
    path.write_text("mine")
    called = made(call, monkeypatch, (), "--folder", "elsewhere")
    assert called.code == Exit.USAGE
    assert str(path) in called.stderr
    assert path.read_text() == "mine"


def test_a_file_that_somebody_else_makes_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text("theirs")
    with pytest.raises(UsageError, match="already"):
        write_new(path, "ours")
    assert [file.name for file in tmp_path.iterdir()] == ["box.toml"]
    assert path.read_text() == "theirs"


def test_planned_it_shows_the_file_and_writes_none(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called = made(call, monkeypatch, CUDA, "--plan")
    assert 'host = "gpu-box"' in called.stdout
    assert not (tmp_path / "inventory").exists()


@pytest.mark.parametrize(
    ("answers", "asked", "said"),
    [
        (("rocm",), "Build of vLLM", "'rocm' cannot be: Input should be 'cuda' or 'cpu'"),
        (("", "-oProxyCommand=x"), "SSH host", "'-oProxyCommand=x' cannot be: String should match pattern"),
        (("", "", "a b"), "Jump host(s)", "'a b' cannot be"),
        (("", "", "", "-1"), "GPUs", "-1 cannot be: Input should be greater than or equal to 0"),
        ((*CUDA[:6], "models/relative"), "Target: its folder on the host", "'models/relative' cannot be"),
        (
            (*CUDA[:9], "70000"),
            "Port on the host's loopback",
            "70000 cannot be: Input should be less than or equal to",
        ),
    ],
)
def test_an_answer_that_cannot_be_is_refused_when_it_is_given(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: tuple[str, ...], asked: str, said: str
) -> None:
    called = made(call, monkeypatch, answers)
    assert called.code == Exit.USAGE, called.stderr
    questions, _, error = called.stderr.partition("error: ")
    assert said in error
    assert f"where: {asked}" in error
    assert questions.rpartition(asked)[2].count(":") == 1, "nothing more is asked"
    assert not (tmp_path / "inventory").exists()


@pytest.mark.parametrize("name", ["-box", "a b", "../box", "", "b/x"])
def test_a_name_that_cannot_be_is_refused_before_the_first_question(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    answering(monkeypatch, ())
    called = call("init", "--", name)
    assert (called.code, called.stdout) == (Exit.USAGE, "")
    assert called.stderr.startswith(f"error: {name!r} cannot be")
    assert "where: NAME" in called.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answers", [(), CUDA[:3]])
def test_without_a_terminal_it_says_what_to_do_instead(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: tuple[str, ...]
) -> None:
    called = made(call, monkeypatch, answers)
    assert called.code == Exit.USAGE
    assert "error: no terminal to ask on, and no answer to " in called.stderr
    assert "do: copy inventory/ct129.toml and edit it, or run it in a terminal" in called.stderr
    assert not (tmp_path / "inventory").exists()


def test_an_interrupt_at_a_question_is_an_interrupt(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupted())
    assert call("init", "box").code == Exit.INTERRUPTED
    assert not (tmp_path / "inventory").exists()


def test_its_document_names_the_file(call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, CUDA)
    document = call.json("init", "box")
    assert (document.changed, document.values) == (True, {"file": str(tmp_path / "inventory/box.toml")})
    assert document.inventory is not None
    assert document.inventory["ssh"]["host"] == "gpu-box"
