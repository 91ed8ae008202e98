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
    ("answers", "code", "said"),
    [
        (("rocm", "", "", "", "", "", "", "", ""), Exit.USAGE, "install.build"),
        ((*CUDA[:6], "models/relative", *CUDA[7:]), Exit.USAGE, "target.path"),
        (CUDA[:3], Exit.INTERRUPTED, ""),  # the end of the input, or Ctrl-D
    ],
)
def test_an_answer_that_cannot_be_is_named_and_nothing_is_written(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: tuple[str, ...], code: Exit, said: str
) -> None:
    called = made(call, monkeypatch, answers)
    assert called.code == code, called.stderr
    assert said in called.stderr
    assert not (tmp_path / "inventory").exists()


def test_its_document_names_the_file(call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, CUDA)
    document = call.json("init", "box")
    assert (document.changed, document.values) == (True, {"file": str(tmp_path / "inventory/box.toml")})
    assert document.inventory is not None
    assert document.inventory["ssh"]["host"] == "gpu-box"
