"""Real OpenSSH servers on loopback, each with its own host key, for the tests of transport and push."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def keygen(path: Path) -> Path:
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sshd:
    """One server; `entry` is its line for known_hosts."""

    def __init__(self, folder: Path, authorized: Path, *, extra: str = "") -> None:
        assert SSHD is not None
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self.key = keygen(folder / "host_key")
        (folder / "authorized_keys").write_text(authorized.with_suffix(".pub").read_text())
        self.config = folder / "sshd_config"
        self.config.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {self.key}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\n"
            f"PermitRootLogin prohibit-password\nUseDNS no\nLogLevel ERROR\nMaxStartups 100\n{extra}"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def entry(self) -> str:
        kind, key, *_ = self.key.with_suffix(".pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {key}\n"

    @property
    def fingerprint(self) -> str:
        command = ["ssh-keygen", "-lf", str(self.key.with_suffix(".pub"))]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]

    def start(self) -> Sshd:
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(self.config)], stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                probe.settimeout(5)
                # Its greeting, since a connection to a free port of this range can meet itself.
                with suppress(OSError):
                    probe.connect(("127.0.0.1", self.port))
                    if probe.recv(4) == b"SSH-":
                        return self
            time.sleep(0.02)
        raise AssertionError(f"sshd did not start: {(self.folder / 'log').read_text()}")

    def sessions(self) -> list[int]:
        """Process ids of the open connections."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def cut(self) -> None:
        """Kills every open connection, as a network does that goes away."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.cut()
            self.process.terminate()
            self.process.wait(10)
            self.process = None


class Servers:
    """A jump host and a host behind it, a client key, a known_hosts file and an ssh_config that names both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = keygen(folder / "client_key")
        self.jump = Sshd(folder / "jump", self.client).start()
        self.box = Sshd(folder / "box", self.client).start()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(self.jump.entry + self.box.entry)
        self.config = folder / "ssh_config"
        self.config.write_text(
            f"Host *\n  IdentityFile {self.client}\n  IdentityAgent none\n  User {getpass.getuser()}\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile none\n"
            f"Host jump\n  HostName 127.0.0.1\n  Port {self.jump.port}\n"
            f"Host direct\n  HostName 127.0.0.1\n  Port {self.box.port}\n"
            f"Host box\n  HostName 127.0.0.1\n  Port {self.box.port}\n  ProxyJump jump\n"
        )

    def stop(self) -> None:
        self.box.stop()
        self.jump.stop()
