"""Push under faults: a line cut at any byte or stalled, a host that restarts, a kill, and disks that refuse."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fakes import FakeTransport
from line import broken
from material import REPOSITORY
from recorder import Recorder
from sshd import Servers

from deployer.errors import TransferError
from deployer.facts.disk import Disk
from deployer.inventory.model import Ssh
from deployer.push import bundle, failure, file
from deployer.push.bundle import loads, send_load
from deployer.push.file import Sending, send
from deployer.push.patience import Patience, attempts
from deployer.transport.faults import LineBroken
from deployer.transport.local import LocalTransport
from deployer.transport.ssh import SshTransport

pytestmark = pytest.mark.slow

OPENSSH = b"SSH-2.0-OpenSSH"  # how ssh greets; the connection that asks beside it is not ssh's
ways = pytest.mark.parametrize("by_ssh", [True, False], ids=["ssh", "channel"])


def big(tmp_path: Path, size: int = 1_000_003) -> Sending:
    """A file whose every page differs, so that a byte in the wrong place is noticed."""
    source = tmp_path / "big.bin"
    blocks = (hashlib.sha512(str(number).encode()).digest() for number in range(size // 64 + 1))
    source.write_bytes(b"".join(blocks)[:size])
    (tmp_path / "there").mkdir(exist_ok=True)
    return Sending(source, hashlib.sha256(source.read_bytes()).hexdigest(), str(tmp_path / "there" / "big.bin"))


def through(servers: Servers, port: int) -> SshTransport:
    """The box, reached over a line at `port`."""
    kind, key = servers.box.entry.split()[1:]
    with servers.known_hosts.open("a") as known:
        known.write(f"[127.0.0.1]:{port} {kind} {key}\n")
    with servers.config.open("a") as config:
        config.write(f"Host line{port}\n  HostName 127.0.0.1\n  Port {port}\n")
    return SshTransport(Ssh(host=f"line{port}", config_file=servers.config, connect_timeout=5))


def holders(path: Path) -> list[int]:
    """Process ids of those that have the file open."""
    found = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it was closed, or its process ended, meanwhile
            if os.readlink(handle) == str(path):
                found.append(int(handle.parts[2]))
    return found


def arrived(sending: Sending) -> bool:
    folder = Path(sending.remote).parent
    same = Path(sending.remote).read_bytes() == sending.source.read_bytes()
    return same and [path.name for path in folder.iterdir()] == [Path(sending.remote).name]


# In bytes of one connection, encryption and all: inside the greeting, the key exchange, the login, the commands before,
# the file's first and last bytes. With ssh the first connection is ours and asks, the second is ssh's.
CUTS = [1, 2501, 9_999, 65_537, 500_000, 1_003_000]


@pytest.mark.parametrize("at", CUTS)
def test_a_line_cut_at_any_byte_is_continued(servers: Servers, tmp_path: Path, at: int) -> None:
    sending = big(tmp_path)
    with broken(servers.box.port, [at, 12_345]) as line:
        box = through(servers, line.port)
        send(box, sending, Recorder(), by_ssh=False)
        box.close()
        assert line.made == [at, 12_345], "it was cut twice, and there"
    assert arrived(sending)


@pytest.mark.parametrize("at", CUTS[2:])
def test_the_line_of_an_ssh_cut_at_any_byte_is_continued(servers: Servers, tmp_path: Path, at: int) -> None:
    sending = big(tmp_path)
    with broken(servers.box.port, [at], client=OPENSSH) as line:
        box = through(servers, line.port)
        send(box, sending, Recorder(), by_ssh=True)
        box.close()
        assert line.made == [at]
    assert arrived(sending)


@pytest.mark.parametrize("at", [9_999, 200_000])
def test_a_stream_of_small_files_goes_on_with_those_that_are_not_there(
    servers: Servers, tmp_path: Path, at: int
) -> None:
    sendings = []
    for number in range(40):
        source = tmp_path / f"{number}\n of many"
        source.write_bytes(str(number).encode() * 5000)
        sha = hashlib.sha256(source.read_bytes()).hexdigest()
        sendings.append(Sending(source, sha, f"{tmp_path}/there/{sha}/{source.name}"))
    with broken(servers.box.port, [at]) as line:
        box, recorder = through(servers, line.port), Recorder()
        send_load(box, sendings, recorder)
        box.close()
        assert line.made == [at]
    total = sum(sending.size for sending in sendings)
    assert recorder.amounts[-1] == (total, total)
    assert all(Path(s.remote).read_bytes() == s.source.read_bytes() for s in sendings)
    assert not list(tmp_path.rglob("*.part"))


@ways
def test_a_line_that_stalls_is_given_up_and_continued_on_another(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_ssh: bool
) -> None:
    monkeypatch.setattr(file, "STALL", 4.0)
    sending = big(tmp_path, 4 << 20)
    with broken(servers.box.port, [3_000_000], hold=True) as line:
        box, recorder = through(servers, line.port), Recorder()
        send(box, sending, recorder, by_ssh=by_ssh)
        box.close()
        assert line.made == [3_000_000]
    assert arrived(sending)
    assert any(said.endswith("; continuing") for said in recorder.lines)


def test_a_host_that_restarts_in_the_middle_is_waited_for(servers: Servers, tmp_path: Path) -> None:
    sending, box = big(tmp_path, 8 << 20), SshTransport(Ssh(host="direct", config_file=servers.config))
    back = threading.Timer(4.0, servers.box.start)

    class Restarting(Recorder):
        def bytes(self, done: int, total: int) -> None:
            super().bytes(done, total)
            if done > total // 2 and not back.is_alive() and back.ident is None:
                servers.box.stop()
                back.start()

    recorder = Restarting()
    send(box, sending, recorder, by_ssh=False)
    box.close()
    back.join()
    assert arrived(sending)
    assert any("connection refused" in said for said in recorder.lines)


def test_patience_ends_after_attempts_that_brought_nothing_and_only_then() -> None:
    patience, state = Patience(attempts=3), object()
    for start in (0, 10, 20, 30, 40):
        patience.found(start)
        assert not patience.over(state)  # type: ignore[arg-type]
        assert patience.pause(state) == 0.5  # type: ignore[arg-type]
    patience.found(40)
    assert not patience.over(state)  # type: ignore[arg-type]
    assert patience.pause(state) == 1.0  # type: ignore[arg-type]
    patience.found(5)
    assert patience.over(state)  # type: ignore[arg-type]


def test_only_a_broken_line_is_tried_again_on_a_new_connection() -> None:
    box, recorder, faults = FakeTransport({}), Recorder(), [LineBroken("cut", where="box", remedy="again"), None]
    for attempt in attempts(box, Patience(longest=0.01), recorder):
        with attempt:
            if fault := faults.pop(0):
                raise fault
    assert (faults, box.commands, recorder.lines) == ([], ["close"], ["cut; continuing"])
    other = attempts(box, Patience(), recorder)
    with next(other):
        raise TransferError("no room", where="box", remedy="make some")
    with pytest.raises(TransferError, match="no room"):
        next(other)
    assert box.commands == ["close"]


def test_a_line_that_never_holds_is_given_up_with_the_part_kept(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "Patience", lambda: Patience(attempts=2, longest=0.1))
    sending = big(tmp_path)
    data = sending.source.read_bytes()
    Path(sending.part).write_bytes(data[:300_000])
    with broken(servers.box.port, [12_000] * 20) as line:
        box = through(servers, line.port)
        with pytest.raises(LineBroken, match="the connection broke"):
            send(box, sending, Recorder(), by_ssh=False)
        box.close()
    assert Path(sending.part).read_bytes() == data[:300_000]


def test_an_older_sender_that_is_not_dead_yet_harms_nothing(tmp_path: Path) -> None:
    """It delivers late what it had taken: the same bytes, and to the same places."""
    sending = big(tmp_path)
    data = sending.source.read_bytes()
    from deployer.push import digest

    old = subprocess.Popen(digest.reader("receive", sending.part, 0), shell=True, stdin=subprocess.PIPE)
    assert old.stdin is not None
    old.stdin.write(data[:400_000])
    old.stdin.flush()
    while not Path(sending.part).exists() or Path(sending.part).stat().st_size < 300_000:
        time.sleep(0.01)

    class Late(Recorder):
        def bytes(self, done: int, total: int) -> None:
            super().bytes(done, total)
            if old.stdin is not None and not old.stdin.closed:
                old.stdin.write(data[400_000:500_000])
                old.stdin.close()
                assert old.wait(30) == 0

    send(LocalTransport(), sending, Late(), by_ssh=False)
    assert arrived(sending)


@ways
def test_a_killed_tool_leaves_no_sender_behind_and_its_part_is_continued(
    servers: Servers, tmp_path: Path, by_ssh: bool
) -> None:
    sending = big(tmp_path, 12 << 20)
    program = f"""
        import sys
        sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / "tests/deployer")!r}]
        from pathlib import Path
        from recorder import Recorder
        from deployer.inventory.model import Ssh
        from deployer.push.file import Sending, send
        from deployer.transport.ssh import SshTransport
        box = SshTransport(Ssh(host="direct", config_file=Path({str(servers.config)!r})))
        sending = Sending(Path({str(sending.source)!r}), {sending.sha256!r}, {sending.remote!r})
        send(box, sending, Recorder(), by_ssh={by_ssh}, limit=3.0)
    """
    victim = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    part, deadline = Path(sending.part), time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 1 << 20):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    deadline = time.monotonic() + 20
    while servers.box.sessions() or holders(part):  # what was in a pipe is written after its connection has ended
        assert time.monotonic() < deadline, "a sender outlives the tool that started it"
        time.sleep(0.05)
    left = part.stat().st_size
    assert left < sending.size
    box, recorder = SshTransport(Ssh(host="direct", config_file=servers.config)), Recorder()
    send(box, sending, recorder, by_ssh=by_ssh)
    box.close()
    assert recorder.lines == [f"big.bin: continuing at {left} of {sending.size} bytes"]
    assert arrived(sending)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@ways
def test_a_disk_that_fills_up_is_named_and_what_arrived_is_continued_when_there_is_room(
    servers: Servers, tmp_path: Path, by_ssh: bool
) -> None:
    sending = big(tmp_path, 6 << 20)
    box = SshTransport(Ssh(host="direct", config_file=servers.config))
    with mounted(tmp_path / "small", "size=4m") as small:
        full = Sending(sending.source, sending.sha256, f"{small}/big.bin")
        with pytest.raises(TransferError) as caught:
            send(box, full, Recorder(), by_ssh=by_ssh)
        assert "the disk is full while sending big.bin" in str(caught.value)
        assert f"{small}: 0.0 of 0.0 GiB free" in str(caught.value)
        assert [path.name for path in small.iterdir()] == ["big.bin.part"]
        kept = Path(full.part).stat().st_size
        assert kept > 2 << 20
        subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
        recorder = Recorder()
        send(box, full, recorder, by_ssh=by_ssh)
        assert recorder.lines == [f"big.bin: continuing at {kept} of {sending.size} bytes"]
        assert arrived(full)
    box.close()


@ways
def test_a_file_system_that_became_read_only_is_named(servers: Servers, tmp_path: Path, by_ssh: bool) -> None:
    sending = big(tmp_path)
    box = SshTransport(Ssh(host="direct", config_file=servers.config))
    with mounted(tmp_path / "fixed", "size=4m") as fixed:
        target = Sending(sending.source, sending.sha256, f"{fixed}/big.bin")
        Path(target.part).write_bytes(sending.source.read_bytes()[:1000])
        subprocess.run(["mount", "-o", "remount,ro", str(fixed)], check=True)
        with pytest.raises(TransferError, match=r"the file system is read-only while sending big\.bin") as caught:
            send(box, target, Recorder(), by_ssh=by_ssh)
        assert "findmnt" in caught.value.remedy
        assert Path(target.part).stat().st_size == 1000
    box.close()


@ways
def test_a_file_system_without_inodes_is_named(servers: Servers, tmp_path: Path, by_ssh: bool) -> None:
    sending = big(tmp_path)
    box = SshTransport(Ssh(host="direct", config_file=servers.config))
    with mounted(tmp_path / "few", "size=4m,nr_inodes=4") as few:
        for number in range(3):
            (few / str(number)).write_text("")
        target = Sending(sending.source, sending.sha256, f"{few}/big.bin")
        with pytest.raises(TransferError, match=r"no inodes are left while sending big\.bin: .* 0 inodes"):
            send(box, target, Recorder(), by_ssh=by_ssh)
        with pytest.raises(TransferError, match="no inodes are left"):
            send(box, Sending(target.source, target.sha256, f"{few}/new/big.bin"), Recorder(), by_ssh=by_ssh)
        small = tmp_path / "small.txt"
        small.write_text("small")
        with pytest.raises(TransferError, match="no inodes are left"):
            send_load(box, [Sending(small, hashlib.sha256(b"small").hexdigest(), f"{few}/sha/small")], Recorder())
    box.close()


ROOM = Disk(mount="/opt", size=1 << 40, free=1 << 39, inodes_free=10_000)


@pytest.mark.parametrize(
    ("said", "room", "named"),
    [
        ('rsync: [receiver] write failed on "/x.part": No space left on device (28)', ROOM, "the disk is full"),
        ('rsync: [receiver] write failed on "/x.part": Disk quota exceeded (122)', ROOM, "the disk quota is used up"),
        ("[Errno 122] Disk quota exceeded: '/opt/x.part'", ROOM, "the disk quota is used up"),
        ("[Errno 122] Le quota disque est d\u00e9pass\u00e9", ROOM, "the disk quota is used up"),
        ("[Errno 30] Read-only file system: '/opt'", ROOM, "the file system is read-only"),
        ("[Errno 28] No space left on device", Disk("/opt", 9, 1 << 39, 0), "no inodes are left"),
        ("[Errno 28] No space left on device", None, "the disk is full"),
        ("[Errno 5] Input/output error", ROOM, "the disk reports errors"),
        ("[Errno 27] File too large", ROOM, "the file is too large"),
        ("rsync error: error in rsync protocol data stream (code 12)", Disk("/opt", 9, 0, 10), "the disk is full"),
        ("rsync error: error in rsync protocol data stream (code 12)", ROOM, None),
        ("[Errno 13] Permission denied", ROOM, None),
    ],
)
def test_what_a_tool_says_in_passing_and_df_decide_the_cause(said: str, room: Disk | None, named: str | None) -> None:
    found = failure.cause(said, room)
    assert (found and found.what.startswith(named or "?")) == (named and True)


class QuotaStandIn(LocalTransport):
    """A stand-in for a host whose quota is used up: writing fails as Python there says it."""

    def feed(self, command: str, *words: object, **named: object) -> file.Result:  # type: ignore[override]
        return super().run("echo \"[Errno 122] Disk quota exceeded: '/x'\" >&2; exit 74", check=False)


def test_a_used_up_quota_is_named_with_what_df_shows(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=r"the disk quota is used up while sending big\.bin: .* GiB free"):
        send(QuotaStandIn(), big(tmp_path), Recorder(), by_ssh=False)


def test_small_files_are_put_into_streams_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LOAD", 100)
    sendings = []
    for number, size in enumerate([60, 40, 1, 100, 0, 99, 1, 1]):
        (tmp_path / str(number)).write_bytes(b"x" * size)
        sendings.append(Sending(tmp_path / str(number), "", f"/there/{number}"))
    assert [[s.source.name for s in load] for load in loads(sendings)] == [
        ["0", "1"],
        ["2"],
        ["3", "4"],
        ["5", "6"],
        ["7"],
    ]


def test_a_small_file_that_changed_meanwhile_is_not_published(tmp_path: Path) -> None:
    source = tmp_path / "small"
    source.write_text("other")
    sending = Sending(source, hashlib.sha256(b"small").hexdigest(), str(tmp_path / "there/small"))
    with pytest.raises(TransferError, match="small arrived damaged"):
        send_load(LocalTransport(), [sending], Recorder())
    assert os.listdir(tmp_path / "there") == []
