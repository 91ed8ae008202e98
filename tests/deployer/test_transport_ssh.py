"""SSH, against real OpenSSH servers: strict host keys, jump hosts, commands, files, ports, and what a broken line
looks like.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest
from sshd import Servers, free_port, keygen

from deployer.errors import PreflightError, TransferError
from deployer.inventory.model import Ssh
from deployer.transport.hostkeys import HostKeyError
from deployer.transport.local import LocalTransport
from deployer.transport.shell import CommandError
from deployer.transport.ssh import SshTransport


def transport(servers: Servers, host: str = "direct", **options: object) -> SshTransport:
    return SshTransport(
        Ssh.model_validate({"host": host, "config_file": servers.config, "connect_timeout": 5, **options})
    )


def test_a_known_host_is_reached_directly_and_through_a_jump_host(servers: Servers) -> None:
    for host, hops in (("direct", 1), ("box", 2)):
        box = transport(servers, host)
        assert len(box.hops) == hops
        assert box.run("echo $SSH_CONNECTION").stdout.split()[-1] == str(servers.box.port)
        box.close()


def test_a_jump_host_named_in_the_inventory_comes_before_the_configs(servers: Servers) -> None:
    box = transport(servers, "direct", jump="jump,direct")
    assert [hop.alias for hop in box.hops] == ["jump", "direct", "direct"]
    assert box.run("echo ok").stdout == "ok\n"
    box.close()


@pytest.mark.parametrize("way", ["ssh", "here"])
def test_what_is_held_hears_each_word_when_it_is_said(servers: Servers, tmp_path: Path, way: str) -> None:
    box = transport(servers) if way == "ssh" else LocalTransport()
    heard = tmp_path / "heard"
    near, far = os.pipe()
    with open(near, "rb", buffering=0) as source, ThreadPoolExecutor(1) as pool:
        held = pool.submit(box.hold, f"while test $(head -c 1); do echo word >>{heard}; done", source)
        for count in (1, 2):
            os.write(far, b".")
            deadline = time.monotonic() + 30
            while not heard.exists() or len(heard.read_text().split()) < count:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert not held.done()
        os.close(far)
        held.result(timeout=30)
    box.close()


def test_proxyjump_none_is_no_host(servers: Servers) -> None:
    assert [hop.alias for hop in transport(servers, "box", jump="none").hops] == ["box"]


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_mending_command_works(servers: Servers) -> None:
    servers.known_hosts.write_text(servers.jump.entry)
    with pytest.raises(HostKeyError) as caught:
        transport(servers).run("true")
    message = str(caught.value)
    assert f"offered: ssh-ed25519 {servers.box.fingerprint}" in message
    assert servers.known_hosts.read_text() == servers.jump.entry, "nothing was accepted silently"
    command = next(line.strip() for line in message.splitlines() if line.strip().startswith("echo"))
    subprocess.run(command, shell=True, check=True)
    assert transport(servers).run("echo ok").stdout == "ok\n"


def test_a_changed_key_is_refused_with_both_fingerprints_and_the_mending_commands_work(servers: Servers) -> None:
    before = servers.box.fingerprint
    servers.box.stop()
    keygen(servers.box.key)
    servers.box.start()
    with pytest.raises(HostKeyError) as caught:
        transport(servers).run("true")
    message = str(caught.value)
    assert "CHANGED" in message
    assert f"known:   ssh-ed25519 {before}" in message
    assert f"offered: ssh-ed25519 {servers.box.fingerprint}" in message
    for line in message.splitlines()[-2:]:
        subprocess.run(line.strip(), shell=True, check=True, capture_output=True)
    assert transport(servers).run("echo ok").stdout == "ok\n"


def test_a_jump_hosts_changed_key_is_refused_too_and_the_hop_is_named(servers: Servers) -> None:
    servers.jump.stop()
    keygen(servers.jump.key)
    servers.jump.start()
    with pytest.raises(HostKeyError, match=r"host key of jump .* has CHANGED"):
        transport(servers, "box").run("true")


def test_hashed_names_revoked_keys_and_the_inventorys_own_file_are_honoured(servers: Servers, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(servers.known_hosts)], check=True, capture_output=True)
    assert "127.0.0.1" not in servers.known_hosts.read_text()
    assert transport(servers).run("echo ok").stdout == "ok\n"
    servers.known_hosts.write_text(servers.box.entry + "@revoked * " + servers.box.entry.split(" ", 1)[1])
    with pytest.raises(HostKeyError):
        transport(servers).run("true")
    own = tmp_path / "own_known_hosts"
    own.write_text(servers.box.entry)
    assert transport(servers, known_hosts_file=own).run("echo ok").stdout == "ok\n"


def test_the_hop_that_fails_is_named_with_a_command_to_try(servers: Servers) -> None:
    servers.box.stop()
    with pytest.raises(TransferError) as caught:
        transport(servers, "box").run("true")
    message = str(caught.value)
    assert f"jump cannot reach 127.0.0.1:{servers.box.port}" in message
    assert "hop 2 of 2: box" in message
    assert f"ssh -F {servers.config} box true" in message
    servers.jump.stop()
    with pytest.raises(TransferError, match=r"(?s)connection refused.*hop 1 of 2: jump"):
        transport(servers, "box").run("true")


def test_a_refused_key_is_named_and_not_tried_again(servers: Servers) -> None:
    (servers.box.folder / "authorized_keys").write_text("")
    with pytest.raises(PreflightError) as caught:
        transport(servers).run("true")
    assert "does not accept your keys" in str(caught.value)
    assert str(servers.client) in str(caught.value)


def test_a_silent_host_is_given_up_in_time(servers: Servers) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with pytest.raises(TransferError):
            transport(servers, port=silent.getsockname()[1], connect_timeout=0.5).run("true")
        assert time.monotonic() - start < 15


def test_commands_give_output_error_code_and_take_stdin(servers: Servers) -> None:
    box = transport(servers, "box")
    result = box.run("cat; echo err >&2; exit 3", check=False, stdin=b"secret")
    assert (result.returncode, result.stdout, result.stderr) == (3, "secret", "err\n")
    large = box.run("head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2")
    assert (len(large.stdout), len(large.stderr)) == (3000000, 3000000)
    with pytest.raises(CommandError, match="failed with 7: no such thing"):
        box.run("echo no such thing >&2; exit 7")
    assert list(box.stream("echo a; echo b >&2; echo c")) == ["a", "b", "c"]
    with pytest.raises(CommandError, match="failed with 4: last words"):
        list(box.stream("echo last words; exit 4"))
    box.close()
    box.close()


def test_output_that_comes_after_the_exit_code_is_whole(servers: Servers) -> None:
    box = transport(servers, "box")
    late = "(sleep 0.5; head -c 300000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero | tr '\\0' y >&2) & exit 3"
    result = box.run(late, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, "x" * 300000, "y" * 300000)
    fed = box.feed(late, io.BytesIO(b"in"), stall=10, sent=lambda _: None)
    assert (fed.returncode, fed.stdout, fed.stderr) == (3, "x" * 300000, "y" * 300000)


def test_a_command_that_leaves_its_output_open_is_given_up_and_not_cut_short(servers: Servers) -> None:
    """Its result is there long before: on a busy machine, too."""
    box = transport(servers)
    box.run("true")
    with pytest.raises(TransferError, match=r"its output did not end within 8 s"):
        box.run("echo some; sleep 30 & exit 0", timeout=8)


def test_a_command_without_a_result_is_given_up(servers: Servers) -> None:
    with pytest.raises(TransferError, match=r"no result within 0\.5 s"):
        transport(servers).run("sleep 30", timeout=0.5)


def test_a_cut_line_is_a_transfer_error_and_the_next_command_connects_again(servers: Servers) -> None:
    box = transport(servers, "box")
    box.run("true")
    cutter = threading.Timer(0.5, servers.box.cut)
    cutter.start()
    with pytest.raises(TransferError, match=r"the connection broke: \S"):
        box.run("sleep 30")
    assert box.run("echo again").stdout == "again\n"
    box.close()


def test_an_inner_connection_that_ends_after_the_one_it_runs_through_is_one_error_and_no_thread_dies_of_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread cannot close the channel that it ran over: nothing is sent through the jump host's connection any more."""

    def gone(*args: object) -> None:
        raise EOFError

    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(args.exc_value))
    box = transport(servers, "box")
    box.run("true")
    outer, inner = (connection.transport for connection in box._connections)
    cutter = threading.Timer(0.5, lambda: (setattr(outer, "_send_user_message", gone), servers.box.cut()))
    cutter.start()
    with pytest.raises(TransferError, match="the connection broke"):
        box.run("sleep 30", timeout=20)
    inner.join(10)
    assert not inner.is_alive()
    assert died == []
    assert box.run("echo again").stdout == "again\n"
    box.close()


def test_a_channel_that_cannot_even_be_closed_does_not_hide_what_broke(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(channel: paramiko.Channel) -> None:
        raise EOFError

    box = transport(servers)
    box.run("true")
    monkeypatch.setattr(paramiko.Channel, "close", broken)
    with pytest.raises(TransferError, match=r"no result within 0\.2 s"):
        box.run("sleep 30", timeout=0.2)
    assert box.run("echo ok").stdout == "ok\n"
    monkeypatch.undo()
    box.close()


def test_small_files_arrive_whole_with_their_mode_and_nothing_beside_them(servers: Servers, tmp_path: Path) -> None:
    box, source, back = transport(servers, "box"), tmp_path / "source", tmp_path / "back"
    source.write_bytes(bytes(range(256)) * 4000)
    target = tmp_path / "there" / "it's here"
    target.parent.mkdir()
    box.put(source, str(target), mode=0o640)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(target.parent.iterdir()) == [target]
    box.get(str(target), back)
    assert back.read_bytes() == source.read_bytes()
    with pytest.raises(CommandError, match="No such file"):
        box.get(str(tmp_path / "nothing"), back)
    box.close()


def test_a_port_of_the_host_is_opened_here_and_survives_a_refused_connection(servers: Servers) -> None:
    box, port = transport(servers, "box"), free_port()
    with box.forward("127.0.0.1", port) as here:
        with socket.create_connection(("127.0.0.1", here)) as client:
            assert client.recv(100) == b"", "nobody listens there yet"
        listener = socket.create_server(("127.0.0.1", port))
        with listener, socket.create_connection(("127.0.0.1", here)) as client:
            client.sendall(b"question")
            client.shutdown(socket.SHUT_WR)
            served, _ = listener.accept()
            with served:
                assert served.recv(100) == b"question"
                served.sendall(b"answer")
            assert client.recv(100) == b"answer"
    box.close()


def test_openssh_itself_takes_the_same_way_under_the_same_strict_rules(servers: Servers) -> None:
    box = transport(servers, "box")
    assert subprocess.run([*box.openssh, "echo ok"], capture_output=True, text=True, check=True).stdout == "ok\n"
    servers.known_hosts.write_text(servers.box.entry)
    refused = subprocess.run([*box.openssh, "true"], capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    config = Path(box.openssh[2])
    box.close()
    assert not config.exists()
