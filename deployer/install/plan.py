"""What an install would do on one host, and the doing of it: wheels, venv, checks, and only then `current`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from deployer.errors import DeployError, InstallError, PreflightError, TransferError
from deployer.install import release as commands
from deployer.install import verify, wheelhouse
from deployer.install.ext_wheel import build_wheel, ext_source
from deployer.install.lockfile import bundled, sha256, wheel_identity
from deployer.install.release import Folder, LocalWheel, Release
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.plan.step import Plan, Progress, Step
from deployer.push.folder import differs, send_folder
from deployer.transport.base import Transport

_PIP_TIMEOUT = 3600.0


def plan(inventory: Inventory, transport: Transport) -> Plan:
    """The steps that make the inventory's engine the current release. Reads the host, changes nothing there."""
    layout = Layout.of(inventory)
    wanted = desired(inventory, transport)
    finished = tuple(transport.run(commands.complete_command(layout.releases)).stdout.split())
    current = transport.run(f"readlink {quote(layout.current)} || true").stdout.strip().rpartition("/")[2]
    job = _Job(inventory, transport, layout, wanted, Folder(layout.release(wanted.identifier)))
    ready = Step("install", "engine", f"release {wanted.identifier} is complete and verified")
    making = (ready,) if wanted.identifier in finished else job.making()
    return Plan(inventory.name, (*making, job.switch(current), job.prune(finished, current)))


def desired(inventory: Inventory, transport: Transport) -> Release:
    """The release that the inventory means on this host: its identity depends on the host's Python."""
    built = [build_wheel(source) for source in (ext_source(), *inventory.install.local_packages)]
    wheels = tuple(LocalWheel(path, sha256(path)) for path in built)
    lock = bundled(inventory.install.build)
    return Release(inventory.install.build, _host_python(inventory.install.python, transport), lock, wheels)


def _host_python(python: str, transport: Transport) -> str:
    look = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
    found = transport.run(f"{quote(python)} -c {quote(look)}", check=False)
    if not found.ok:
        raise PreflightError(
            f"{python} on the host cannot make a venv: {(found.stderr.strip().splitlines() or ['not found'])[-1]}",
            where=transport.name,
            remedy="apt-get install python3 python3-venv, or set [install] python",
        )
    return found.stdout.strip()


@dataclass(frozen=True)
class _Job:
    """One release on its way onto one host."""

    inventory: Inventory
    transport: Transport
    layout: Layout
    release: Release
    folder: Folder

    def making(self) -> tuple[Step, ...]:
        """Everything between an absent or interrupted release and a verified one."""
        identifier = self.release.identifier
        begun = self.transport.run(f"test -e {quote(self.folder.path)}", check=False).ok
        reason = "an interrupted install is begun again" if begun else f"release {identifier} is not on the host"
        return (
            *(self._wheel_steps() if self.inventory.install.source == "wheelhouse" else ()),
            Step("install", "venv", reason, self._install),
            Step("install", "verify", f"release {identifier} counts only when vLLM and the plugin load", self._verify),
        )

    def _wheel_steps(self) -> tuple[Step, ...]:
        folder, count = self._wheelhouse(), len(self.release.lock.pins)
        missing = wheelhouse.look(self.release.lock, folder).missing
        if missing:
            fetch = Step("install", "wheelhouse", f"{len(missing)} of {count} wheels are not in {folder}", self._fetch)
            return fetch, Step("install", "wheels", "sent after the download", self._send)
        ready = Step("install", "wheelhouse", f"all {count} wheels are in {folder}, by SHA-256")
        absent = differs(self.transport, folder, self.layout.wheels)
        if absent:
            return ready, Step("install", "wheels", f"{len(absent)} files are not on the host", self._send)
        return ready, Step("install", "wheels", "every wheel is on the host, by SHA-256")

    def _wheelhouse(self) -> Path:
        folder = self.inventory.install.wheelhouse
        if folder is None:
            raise PreflightError(
                "[install] source is wheelhouse, but no wheelhouse is named",
                where=f"inventory {self.inventory.name}",
                remedy="set wheelhouse",
            )
        return folder

    def _fetch(self, progress: Progress) -> None:
        wheelhouse.fill(self.release.lock, self._wheelhouse(), self.release.python, progress.say)

    def _send(self, progress: Progress) -> None:
        send_folder(self.transport, self._wheelhouse(), self.layout.wheels, progress)

    def _install(self, progress: Progress) -> None:
        run = self.transport.run
        run(commands.begin_command(self.folder), sudo=True)
        self._send_local(progress)
        progress.say(f"making {self.folder.venv}")
        self._stream(commands.venv_command(self.folder, self.inventory.install.python), progress)
        offline = self.inventory.install.source == "wheelhouse"
        lock, local = self.folder.locks
        origin = "offline" if offline else "from the index"
        progress.say(f"installing {len(self.release.lock.pins)} pinned wheels, {origin}")
        self._stream(commands.pip_command(self.folder, lock, self.layout.wheels if offline else None), progress)
        self._stream(commands.pip_command(self.folder, local, self.folder.wheels), progress)
        progress.say("compiling to bytecode")
        self._stream(commands.compile_command(self.folder), progress)

    def _send_local(self, progress: Progress) -> None:
        """Sends what belongs to this release alone: the locally built wheels, both locks, the manifest."""
        lock, local = self.folder.locks
        with tempfile.TemporaryDirectory() as work:
            wheels = Path(work, "wheels")
            wheels.mkdir()
            for wheel in self.release.wheels:
                (wheels / wheel.path.name).write_bytes(wheel.path.read_bytes())
            send_folder(self.transport, wheels, self.folder.wheels, progress)
            texts = {lock: self.release.lock.text(), local: self.release.local_lock().text()}
            texts[self.folder.manifest] = self.release.manifest()
            for remote, text in texts.items():
                path = Path(work, Path(remote).name)
                path.write_text(text, encoding="utf-8")
                self.transport.put(path, remote, sudo=True)

    def _stream(self, command: str, progress: Progress) -> None:
        tail: list[str] = []
        wheels = 0
        try:
            alone = commands.alone_command(self.folder, command)
            for line in self.transport.stream(alone, sudo=True, timeout=_PIP_TIMEOUT):
                tail = [*tail[-4:], line]
                wheels += line.startswith("Processing ")
                if wheels % 40 == 39 and line.startswith("Processing "):
                    progress.say(f"{wheels} wheels read")
        except TransferError:
            raise
        except DeployError as error:
            raise self._failed(tail) from error

    def _failed(self, tail: list[str]) -> InstallError:
        errors = [line for line in tail if "ERROR" in line or "error" in line]
        said = (errors or tail or ["no output"])[-1].strip()
        return InstallError(
            f"The release could not be installed: {said}",
            where=f"{self.transport.name}:{self.folder.path}",
            remedy="`current` is as it was; mend this and run install again",
        )

    def _verify(self, progress: Progress) -> None:
        where = f"{self.transport.name}:{self.folder.path}"
        progress.say("importing vLLM and asking its own parser")
        environment = self.inventory.serve.environment
        probe = verify.scratch_command(self.folder.python, "", environment.get("TRITON_INTERPRET"))
        result = self.transport.run(probe, sudo=True, check=False, timeout=600.0, stdin=verify.PROBE.encode())
        if not result.ok:
            said = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
            raise InstallError(f"The new release's Python fails: {said}", where=where, remedy="run install again")
        engine = verify.judge(result.stdout, self.release.build, self._ext_version(), where)
        self.transport.run(commands.finish_command(self.folder), sudo=True)
        plugins = ", ".join(engine.plugins)
        progress.say(f"vLLM {engine.vllm}, torch {engine.torch}, ddtree-ext {engine.ext}, plugins {plugins}")

    def _ext_version(self) -> str:
        names = dict(wheel_identity(wheel.path.name) for wheel in self.release.wheels)
        return names["ddtree-ext"]

    def switch(self, current: str) -> Step:
        """`current` moves last, in one rename."""
        identifier = self.release.identifier
        if current == identifier:
            return Step("install", "current", f"already points to {identifier}")
        reason = f"points to {current}" if current else "there is no current release"
        switch = commands.activate_command(self.folder, self.layout.current)
        return Step("install", "current", reason, self._quietly(switch))

    def prune(self, finished: tuple[str, ...], current: str) -> Step:
        """Old releases go when a new one comes, except those that a deployment may be rolled back to."""
        keep, identifier = self.inventory.install.keep, self.release.identifier
        if identifier in finished:
            return Step("install", "prune", f"{_releases(len(finished))}; old ones go when a new one is installed")
        ordered = (identifier, *finished)
        old = (*commands.superfluous(ordered, keep, frozenset({current, *self._deployed()})), *self._interrupted())
        if not old:
            return Step("install", "prune", f"{_releases(len(ordered))}: the newest {keep} and those in use are kept")
        paths = " ".join(quote(self.layout.release(name)) for name in old)
        reason = f"older than the newest {keep} and not in use, or never finished: {', '.join(old)}"
        return Step("install", "prune", reason, self._quietly(f"rm -rf {paths}"))

    def _interrupted(self) -> tuple[str, ...]:
        """Releases that were begun and that nobody asks for any more."""
        begun = self.transport.run(commands.interrupted_command(self.layout.releases), sudo=True).stdout.split()
        return tuple(identifier for identifier in begun if identifier != self.release.identifier)

    def _deployed(self) -> tuple[str, ...]:
        """Releases of the deployment that serves and of the one before it."""
        active = f"{self.layout.state}/deployments/active"
        look = f"readlink -f {quote(active)}/release {quote(active)}/previous/release 2>/dev/null || true"
        found = self.transport.run(look, sudo=True).stdout.split()
        return tuple(path.rpartition("/")[2] for path in found)

    def _quietly(self, command: str) -> Callable[[Progress], None]:
        def action(progress: Progress) -> None:
            self.transport.run(command, sudo=True, timeout=600.0)

        return action


def _releases(count: int) -> str:
    """So many of them, in words."""
    return f"{count} release{'' if count == 1 else 's'}"
