"""vllm-router as a release on the router's host: pinned, hash-checked, in a venv of its own; proved before it counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from shlex import quote

from deployer.errors import DeployError, InstallError, PreflightError, TransferError
from deployer.fleet.inventory import Router
from deployer.install import release as commands
from deployer.install import wheelhouse
from deployer.install.lockfile import Lock, bundled
from deployer.install.release import Folder, Release
from deployer.plan.step import Progress, Step
from deployer.push.folder import differs, send_folder
from deployer.transport.base import Transport

_PIP_TIMEOUT = 1800.0


def desired(router: Router, transport: Transport) -> Release:
    """The release that this program brings; its identity depends on the host's Python."""
    look = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
    found = transport.run(f"{quote(router.install.python)} -c {quote(look)}", check=False)
    if not found.ok:
        raise PreflightError(
            f"{router.install.python} on the host cannot make a venv: {(found.stderr.strip().splitlines() or ['?'])[-1]}",
            where=transport.name,
            remedy="apt-get install python3 python3-venv, or set [install] python",
        )
    return Release("router", found.stdout.strip(), bundled("router"), ())


@dataclass(frozen=True)
class Install:
    """One release on its way onto the router's host."""

    router: Router
    transport: Transport
    release: Release

    @property
    def folder(self) -> Folder:
        return Folder(self.router.layout.release(self.release.identifier))

    @property
    def lock(self) -> Lock:
        return self.release.lock

    def finished(self) -> tuple[str, ...]:
        """The complete releases on the host, newest first."""
        return tuple(self.transport.run(commands.complete_command(self.router.layout.releases)).stdout.split())

    def steps(self, finished: tuple[str, ...]) -> tuple[Step, ...]:
        """Nothing when the release is there; else wheels, venv, proof, and the end of releases that nobody needs."""
        identifier = self.release.identifier
        if identifier in finished:
            return (Step("install", "router", f"release {identifier} is complete and verified"),)
        making = Step("install", "router", f"release {identifier} is not on the host", self._make)
        return (*self._wheels(), making, *self._prune(finished))

    def _wheels(self) -> tuple[Step, ...]:
        folder = self.router.install.wheelhouse
        if self.router.install.source != "wheelhouse" or folder is None:
            return ()
        remote = self.router.layout.wheels

        def fetch(progress: Progress) -> None:
            wheelhouse.fill(self.lock, folder, self.release.python, progress.say)

        def send(progress: Progress) -> None:
            send_folder(self.transport, folder, remote, progress)

        missing = len(wheelhouse.look(self.lock, folder).missing)
        if missing:
            why = f"{missing} of {len(self.lock.pins)} wheels are not in {folder}"
            return Step("install", "wheelhouse", why, fetch), Step("install", "wheels", "sent after the download", send)
        absent = differs(self.transport, folder, remote)
        ready = Step("install", "wheels", "every wheel is on the host, by SHA-256")
        return (Step("install", "wheels", f"{len(absent)} files are not on the host", send) if absent else ready,)

    def _make(self, progress: Progress) -> None:
        run, folder, lock = self.transport.run, self.folder, self.folder.locks[0]
        run(commands.begin_command(folder), sudo=True)
        self.transport.write(self.lock.text().encode(), lock, sudo=True)
        about = {"id": self.release.identifier, "python": self.release.python, "vllm-router": self.version}
        self.transport.write((json.dumps(about, indent=2) + "\n").encode(), folder.manifest, sudo=True)
        offline = self.router.layout.wheels if self.router.install.source == "wheelhouse" else None
        progress.say(f"installing {len(self.lock.pins)} pinned wheels, {'offline' if offline else 'from the index'}")
        for command in (
            commands.venv_command(folder, self.router.install.python),
            commands.pip_command(folder, lock, offline),
            commands.compile_command(folder),
        ):
            self._stream(command)
        self._prove()
        run(commands.finish_command(folder), sudo=True)
        progress.say(f"vllm-router {self.version}")

    @property
    def version(self) -> str:
        return self.lock.version("vllm-router") or "?"

    def _stream(self, command: str) -> None:
        tail: list[str] = []
        try:
            for line in self.transport.stream(command, sudo=True, timeout=_PIP_TIMEOUT):
                tail = [*tail[-4:], line]
        except TransferError:
            raise
        except DeployError as error:
            raise self._failed(([line for line in tail if "rror" in line] or tail or ["no output"])[-1]) from error

    def _prove(self) -> None:
        """The program itself reads a command line: its library loads on this host."""
        done = self.transport.run(f"{quote(self.folder.venv)}/bin/vllm-router --help", sudo=True, check=False)
        if not done.ok or "--worker-urls" not in done.stdout:
            raise self._failed((done.stderr.strip().splitlines() or ["its help is another"])[-1])

    def _failed(self, said: str) -> InstallError:
        return InstallError(
            f"vllm-router could not be installed: {said.strip()}",
            where=f"{self.transport.name}:{self.folder.path}",
            remedy="what ran runs on; mend this and run it again",
        )

    def _prune(self, finished: tuple[str, ...]) -> tuple[Step, ...]:
        link = self.transport.run(f"readlink {quote(self.router.layout.current)} || true").stdout.strip()
        ordered = (self.release.identifier, *finished)
        old = commands.superfluous(ordered, self.router.install.keep, frozenset({link.rpartition("/")[2]}))
        if not old:
            return ()
        paths = " ".join(quote(self.router.layout.release(name)) for name in old)

        def prune(progress: Progress) -> None:
            self.transport.run(f"rm -rf {paths}", sudo=True, timeout=600.0)

        return (Step("install", "prune", f"older than the newest {self.router.install.keep}: {', '.join(old)}", prune),)
