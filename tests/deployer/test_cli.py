"""The command line, run as the operator runs it: exit codes, sentences instead of tracebacks, plans that change
nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import planted
import pytest
from material import REPOSITORY, TINY_PROFILE, write_checkpoint
from sshd import Servers

from deployer.errors import Exit

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-c", "from deployer.cli.app import main; main()"]


@pytest.fixture
def host(tmp_path: Path, drafter: Path, servers: Servers) -> Path:
    """An inventory file whose host is the SSH server on loopback, its root in the test's folder."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"model_type": "tiny", "num_hidden_layers": 8, "hidden_size": 128}')
    write_checkpoint(target / "model.safetensors", {"model.embed_tokens.weight": (320, 128)})
    path = tmp_path / "box.toml"
    path.write_text(
        f'name = "box"\nroot = "{tmp_path}/root"\nservice = "ddtree-test-{os.getpid()}"\n'
        f'[ssh]\nhost = "box"\nconfig_file = "{servers.config}"\nconnect_timeout = 5\n'
        f'[drafter]\nfile = "{drafter}"\nprofile = "{TINY_PROFILE}"\n'
        f'[target]\npath = "{tmp_path}/root/models/target"\npush = "{target}"\n'
        '[install]\nbuild = "cpu"\nsource = "wheelhouse"\nwheelhouse = "wheels"\n'
        f'[serve]\nserved_model_name = "tiny"\nport = {_free_port()}\n'
        f'[serve.secrets]\nVLLM_API_KEY = {{ env = "{planted.VARIABLE}" }}\n'
    )
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def deploy(*words: str | Path, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False
    )


def test_version_and_help() -> None:
    assert deploy("--version").stdout == "ddtree-deploy 0.1.0\n"
    shown = deploy("--help").stdout
    for verb in ("check", "push", "install", "bench", "serve", "up", "status", "logs", "tunnel", "smoke", "stop"):
        assert verb in shown
    for verb in ("rollback", "uninstall", "inventory", "lock", "doctor"):
        assert verb in shown


def test_inventory_lists_shows_and_validates() -> None:
    assert "ct129" in deploy("inventory", "list").stdout
    assert "tensor-parallel-size = 2" in deploy("inventory", "show", "ct129").stdout
    assert "valid; drafter profile z-lab/Qwen3.6-27B-DFlash" in deploy("inventory", "validate", "ct129").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("check", "stagin"), Exit.USAGE, "did you mean staging?"),
        (("chekc", "staging"), Exit.USAGE, "No such command"),
        (("check",), Exit.USAGE, "Missing argument"),
        (("serve", "staging", "--replase", "x"), Exit.USAGE, "No such option"),
    ],
)
def test_a_mistake_is_a_sentence_and_an_exit_code(words: tuple[str, ...], code: Exit, said: str) -> None:
    done = deploy(*words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_push_over_ssh_plan_first_then_once_then_nothing(host: Path, tmp_path: Path) -> None:
    planned = deploy("push", host, "--plan")
    assert planned.returncode == 0
    assert "+ push: send the drafter tiny-hybrid" in planned.stdout
    assert not (tmp_path / "root").exists()
    first = deploy("push", host)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "root/models/tiny-hybrid/config.json").is_file()
    second = deploy("push", host)
    assert "nothing to send: the SHA-256 is equal on both ends" in second.stdout
    assert second.stdout.rstrip().endswith("nothing to do")
    assert len((tmp_path / "root/state/audit.log").read_text().splitlines()) == 1


def test_check_shows_findings_and_its_exit_code_is_preflight(host: Path, drafter: Path) -> None:
    drafter.write_bytes(drafter.read_bytes()[:-100])
    done = deploy("check", host)
    assert done.returncode == Exit.PREFLIGHT
    assert "is truncated: 100 of" in done.stdout
    assert "the host is not ready" in done.stderr
    assert "drafter" in done.stderr


def test_an_unreachable_host_and_an_unknown_key_have_their_codes(host: Path, servers: Servers) -> None:
    servers.known_hosts.write_text(servers.jump.entry)
    unknown = deploy("check", host)
    assert unknown.returncode == Exit.PREFLIGHT
    assert servers.box.fingerprint in unknown.stderr
    servers.box.stop()
    gone = deploy("check", host)
    assert gone.returncode == Exit.TRANSFER
    assert "hop 2 of 2: box" in gone.stderr
    assert "Traceback" not in gone.stderr + unknown.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_with_130_and_leaves_no_lock(host: Path, number: signal.Signals, tmp_path: Path) -> None:
    """The host's disk is made slow by a named pipe in place of the .part, so that the push is still under way."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    lock = Path(f"/run/lock/ddtree-test-{os.getpid()}.deploy")
    sha = _sha(tmp_path / "drafter.safetensors")
    part = tmp_path / f"root/models/store/{sha}/model.safetensors.part"
    part.parent.mkdir(parents=True)
    os.mkfifo(part)
    process = subprocess.Popen(
        [*PROGRAM, "push", str(host)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not lock.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lock.exists()
    time.sleep(1)
    second = deploy("push", host)
    assert second.returncode == Exit.LOCKED
    assert "a deployment is under way" in second.stderr
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    os.close(os.open(part, os.O_RDONLY | os.O_NONBLOCK))  # whoever still waits to write there ends now
    assert process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in said
    assert not lock.exists()


def _sha(path: Path) -> str:
    from deployer.push import digest

    return digest.of_file(path)


def test_a_lock_left_behind_is_shown_and_broken(host: Path) -> None:
    lock = Path(f"/run/lock/ddtree-test-{os.getpid()}.deploy")
    lock.mkdir(parents=True)
    (lock / "owner").write_text(
        '{"who": "ann@laptop", "since": "2026-01-01T00:00:00+00:00", "verb": "up", "token": "t"}'
    )
    try:
        assert deploy("lock", host).stdout == "ann@laptop, up, since 2026-01-01T00:00:00+00:00\n"
        assert "broken: ann@laptop" in deploy("lock", host, "--break", "her laptop died").stdout
        assert not lock.exists()
        assert deploy("lock", host).stdout == "not locked\n"
    finally:
        (lock / "owner").unlink(missing_ok=True)
        if lock.exists():
            lock.rmdir()


def test_a_tunnel_reaches_the_hosts_loopback_until_ctrl_c(host: Path) -> None:
    port = int(next(line for line in host.read_text().splitlines() if line.startswith("port =")).split()[2])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    with socket.create_server(("127.0.0.1", port)) as listener:
        process = subprocess.Popen([*PROGRAM, "tunnel", str(host)], env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        here = int(process.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
        with socket.create_connection(("127.0.0.1", here)) as client:
            served, _ = listener.accept()
            with served:
                served.sendall(b"hello")
                assert client.recv(10) == b"hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == Exit.INTERRUPTED
