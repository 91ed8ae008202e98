"""The lab's parts that need neither root nor containers: names, keys' files, and the forwarder's faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import time
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from .base import apt_sources, apt_transport
from .box import Lab
from .containers import CT129, containers, guest_config, kpro5_config
from .identity import known_hosts, ssh_config
from .machine import LabError
from .nsproxy import Connection, Faults, Knobs, forward
from .place import Place, place


class TestPlace:
    def test_labs_in_two_directories_share_no_name(self) -> None:
        first, second = (place({"LAB_DIR": directory}) for directory in ("/tmp/a", "/tmp/b"))
        assert first.namespace != second.namespace
        assert first == place({"LAB_DIR": "/tmp/a"})

    def test_the_environment_rules(self) -> None:
        asked = place({"LAB_DIR": "/tmp/a", "LAB_BASE": "/tmp/image", "LAB_NS": "mine"})
        assert asked == Place(Path("/tmp/a"), Path("/tmp/image"), "mine")

    @pytest.mark.parametrize("environ", [{"LAB_DIR": "/tmp/a b"}, {"LAB_DIR": "/tmp/a,b"}, {"LAB_NS": "../x"}])
    def test_what_lxc_would_misread_is_refused(self, environ: dict[str, str]) -> None:
        with pytest.raises(LabError):
            place(environ)

    def test_a_second_box_is_there_when_asked_for_and_only_then(self) -> None:
        one, two = place({}), place({"LAB_GUESTS": "129,130"})
        assert [container.name for container in containers(one)] == ["kpro5", "ct129"]
        assert [container.name for container in containers(two)] == ["kpro5", "ct129", "ct130"]
        assert "130/rootfs" not in kpro5_config(one)
        assert "130/rootfs" in kpro5_config(two)
        assert "lxc-attach -n 130 " in " ".join(Lab(two).attach("ct130", "true"))
        with pytest.raises(LabError, match="no ct130"):
            Lab(one).attach("ct130", "true")

    def test_a_box_that_kpro5_cannot_have_is_refused(self) -> None:
        with pytest.raises(LabError, match="129,130"):
            place({"LAB_GUESTS": "131"})


class TestIdentity:
    @pytest.mark.parametrize(
        ("asked", "key"),
        [
            ("[127.0.0.1]:4022", "AAAAkpro5"),
            ("10.129.0.5", "AAAAkpro5"),
            ("kpro5", "AAAAkpro5"),
            ("10.130.0.129", "AAAAct129"),
            ("ct129", "AAAAct129"),
        ],
    )
    def test_openssh_finds_each_host_under_each_of_its_names(self, tmp_path: Path, asked: str, key: str) -> None:
        file = tmp_path / "known_hosts"
        file.write_text(known_hosts(4022, {"kpro5": "ssh-ed25519 AAAAkpro5", "ct129": "ssh-ed25519 AAAAct129"}))
        found = subprocess.run(["ssh-keygen", "-F", asked, "-f", file], capture_output=True, text=True, check=True)
        assert key in found.stdout

    @pytest.mark.parametrize("host", ["kpro5", "ct129"])
    def test_openssh_reads_the_configuration_as_strict(self, tmp_path: Path, host: str) -> None:
        lab = Place(tmp_path, tmp_path / "base", "x")
        lab.ssh_config.write_text(ssh_config(lab, 4022))
        shown = subprocess.run(["ssh", "-F", lab.ssh_config, "-G", host], capture_output=True, text=True, check=True)
        said = dict(line.partition(" ")[::2] for line in shown.stdout.splitlines())
        assert said["stricthostkeychecking"] == "true"
        assert said["userknownhostsfile"] == str(lab.known_hosts)
        assert said["globalknownhostsfile"] == "/dev/null"
        assert said.get("proxyjump") == (None if host == "kpro5" else "kpro5")

    def test_only_kpro5_is_told_where_ct129_is(self, tmp_path: Path) -> None:
        lab = Place(tmp_path, tmp_path / "base", "x")
        assert "10.130.0.129/24" in guest_config(CT129)
        assert "10.130." not in kpro5_config(lab)


class TestAptSources:
    def test_debians_own_file_alone_is_taken(self, tmp_path: Path) -> None:
        parts = tmp_path / "sources.list.d"
        parts.mkdir()
        (tmp_path / "sources.list").write_text("deb x y z\n")
        assert apt_sources(tmp_path) == [tmp_path / "sources.list"]
        (parts / "debian.sources").write_text("Types: deb\n")
        assert apt_sources(tmp_path) == [parts / "debian.sources"]

    def test_a_machine_without_sources_is_told_so(self, tmp_path: Path) -> None:
        with pytest.raises(LabError, match="no apt sources"):
            apt_sources(tmp_path)

    def test_the_machines_proxy_is_passed_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "apt.conf").write_text('Acquire::http::Proxy "http://127.0.0.1:3142";\n')
        monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
        assert '--aptopt=Acquire::http::Proxy "http://127.0.0.1:3142";' in apt_transport()


@pytest.mark.parametrize("text", ['{"cut_afer": 3}', '{"cut_after": "3"}', '{"refuse": 1}', "[]", "not json"])
def test_a_fault_misspelt_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Faults.parse(text)


class TestForwarder:
    """The forwarder between a client and a server that sends back what it got, all on loopback."""

    def talk(self, tmp_path: Path, *scripts: tuple[Faults, int]) -> list[int]:
        """Per script: set the faults, connect, send so many bytes, and count what comes back before the end."""

        async def session() -> list[int]:
            echo = await asyncio.start_server(_echo, "127.0.0.1", 0)
            listener = socket.create_server(("127.0.0.1", 0))
            target, port = echo.sockets[0].getsockname()[1], listener.getsockname()[1]
            faults = tmp_path / "faults.json"
            serving = asyncio.create_task(forward(Knobs(faults), listener, "127.0.0.1", target))
            counts, before = [], None
            for wanted, size in scripts:
                if wanted != before:
                    wanted.write(faults)
                    before = wanted
                counts.append(await asyncio.wait_for(_count(port, size), 20))
            serving.cancel()
            echo.close()
            return counts

        return asyncio.run(session())

    def test_all_arrives_where_nothing_is_at_fault(self, tmp_path: Path) -> None:
        assert self.talk(tmp_path, (Faults(), 1_000_000)) == [1_000_000]

    def test_every_connection_is_cut(self, tmp_path: Path) -> None:
        cut = Faults(cut_after=300_000)
        first, second, small = self.talk(tmp_path, (cut, 1_000_000), (cut, 1_000_000), (cut, 100_000))
        assert max(first, second) < 300_000
        assert small == 100_000

    def test_so_many_connections_are_cut_and_again_after_a_change(self, tmp_path: Path) -> None:
        once = Faults(cut_after=300_000, cut_times=1)
        sizes = self.talk(tmp_path, (once, 1_000_000), (once, 1_000_000), (Faults(), 1_000_000), (once, 1_000_000))
        assert [size == 1_000_000 for size in sizes] == [False, True, True, False]

    def test_bytes_of_the_other_way_are_no_second_cut(self, tmp_path: Path) -> None:
        knobs = Knobs(tmp_path / "faults.json")
        Faults(cut_after=1000, cut_times=2).write(tmp_path / "faults.json")

        async def both_ways_at_once() -> None:
            connection = Connection(knobs, Mock(drain=AsyncMock()), Mock(drain=AsyncMock()))
            await asyncio.gather(*(connection.pump(_full(2000), Mock(drain=AsyncMock())) for _ in range(2)))

        asyncio.run(both_ways_at_once())
        assert knobs.cuts_at(2000)
        assert not knobs.cuts_at(2000)

    def test_refused(self, tmp_path: Path) -> None:
        assert self.talk(tmp_path, (Faults(refuse=True), 1000), (Faults(), 1000)) == [0, 1000]

    @pytest.mark.parametrize(("faults", "least"), [(Faults(rate_kbps=500), 0.8), (Faults(delay_ms=300), 0.6)])
    def test_slowed(self, tmp_path: Path, faults: Faults, least: float) -> None:
        started = time.monotonic()
        assert self.talk(tmp_path, (faults, 512_000)) == [512_000]
        assert least <= time.monotonic() - started < least + 5

    def test_a_file_of_faults_holds_every_name(self, tmp_path: Path) -> None:
        Faults(delay_ms=3).write(tmp_path / "faults.json")
        assert Faults.parse((tmp_path / "faults.json").read_text()) == Faults(delay_ms=3)
        assert len(json.loads((tmp_path / "faults.json").read_text())) == 5


def _full(size: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(bytes(size))
    reader.feed_eof()
    return reader


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _count(port: int, size: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(_send(writer, size))
    got = 0
    with contextlib.suppress(OSError):
        while got < size and (data := await reader.read(65536)):
            got += len(data)
    writer.close()
    await sending
    return got


async def _send(writer: asyncio.StreamWriter, size: int) -> None:
    with contextlib.suppress(OSError):
        for _ in range(0, size, 1000):
            writer.write(bytes(1000))
            await writer.drain()
