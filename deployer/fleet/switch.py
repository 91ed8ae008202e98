"""From one router to another on its host, and the way back when the new one does not send to the boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from shlex import quote

from deployer.errors import DeployError, GateError, PreflightError, RollbackError
from deployer.facts import service as facts
from deployer.fleet.api import Api, endpoint_of
from deployer.fleet.inventory import Router
from deployer.fleet.render import Files, arguments
from deployer.install.release import Folder
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve.gate import Clock
from deployer.serve.service import stop_unit
from deployer.transport.base import Transport

_JOURNAL = 20
# vllm-router's own parser, on the very words of the unit.
_PARSE = "import sys; from vllm_router.launch_router import parse_router_args as p; p(sys.argv[1:])"


@dataclass(frozen=True)
class Switch:
    """`files` and `release` replace what is there; `wanted` are the URLs that the new router must find healthy."""

    router: Router
    transport: Transport
    files: Files
    release: str
    wanted: tuple[str, ...]
    clock: Clock = field(default_factory=Clock)

    def start(self, progress: Progress) -> None:
        """Keeps what there is, puts the new in place, restarts, and waits until the boxes are served; else goes back."""
        self._options_are_its_own()
        self._keep()
        try:
            self._put()
            self._restart()
            self._prove(progress)
        except BaseException as error:
            progress.say("restoring what was there before")
            now = self._restored(error)
            if isinstance(error, DeployError):
                raise GateError(f"{error.what}; {now}", where=error.where, remedy=error.remedy) from error
            raise

    def _restored(self, error: BaseException) -> str:
        """Says what is there now. RollbackError when that is nothing that runs."""
        try:
            with held_back():
                return self._put_back()
        except DeployError as second:
            why = error.what if isinstance(error, DeployError) else "interrupted"
            raise RollbackError(
                f"{why}; and the one before could not be restored: {second.what}",
                where=self.transport.name,
                remedy="look at the host: systemctl status, journalctl",
            ) from error

    def _options_are_its_own(self) -> None:
        python = Folder(self.router.layout.release(self.release)).python
        words = " ".join(map(quote, arguments(self.router, self.wanted)))
        done = self.transport.run(f"{quote(python)} -I -c {quote(_PARSE)} {words}", sudo=True, check=False)
        if not done.ok:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise PreflightError(
                f"vllm-router refuses the options: {said[-300:]}",
                where=self.transport.name,
                remedy="correct [serve.options]; nothing was stopped",
            )

    @property
    def _kept(self) -> str:
        return f"{self.router.layout.state}/before"

    def _keep(self) -> None:
        layout, kept = self.router.layout, quote(self._kept)
        copies = [
            f"if test -e {quote(path)}; then cp -p {quote(path)} {kept}/{number}; fi"
            for number, path in enumerate(self.files.placed(layout))
        ]
        link = f"if test -L {quote(layout.current)}; then cp -P {quote(layout.current)} {kept}/current; fi"
        self.transport.run(f"umask 077; rm -rf {kept}; mkdir -p {kept}; {'; '.join([*copies, link])}", sudo=True)

    def _put(self) -> None:
        layout = self.router.layout
        for path, text in self.files.placed(layout).items():
            self.transport.run(f"umask 022; mkdir -p {quote(path.rpartition('/')[0])}", sudo=True)
            self.transport.write(text.encode(), path, sudo=True)
        current = quote(layout.current)
        point = f"ln -sfn {quote(layout.release(self.release))} {current}.new && mv -Tf {current}.new {current}"
        self.transport.run(f"{point} && systemctl daemon-reload", sudo=True)

    def _restart(self) -> None:
        unit = quote(self.router.layout.unit)
        stop_unit(self.transport, self.router.layout.unit)
        command = f"systemctl reset-failed {unit} 2>/dev/null; systemctl start {unit} && systemctl enable -q {unit}"
        self.transport.run(command, sudo=True)

    def _prove(self, progress: Progress) -> None:
        router, deadline = self.router, self.clock.now() + self.router.serve.gate_timeout
        endpoint = endpoint_of(router, self.transport)
        while True:
            workers = Api(endpoint).workers()
            healthy = {worker.url for worker in workers or () if worker.healthy}
            missing = [url for url in self.wanted if url not in healthy]
            if workers is not None and not missing:
                progress.say(f"sends to {', '.join(sorted(healthy))}")
                return
            state = facts.read(self.transport, router.layout)
            late = self.clock.now() > deadline
            if late or state.active in ("failed", "inactive") or state.restarts > 1:
                said = f"does not send to {', '.join(missing)}" if workers is not None else f"is {state.active}, silent"
                raise GateError(
                    f"the router {said}", where=endpoint.where, remedy=f"its journal ends with: {self._last_line()}"
                )
            self.clock.sleep(0.5)

    def _last_line(self) -> str:
        unit = quote(self.router.layout.unit)
        command = f"journalctl --no-pager -q -o cat -n {_JOURNAL} -u {unit} || true"
        lines = self.transport.run(command, sudo=True, check=False).stdout.splitlines()
        wrong = [line for line in lines if "rror" in line]
        return (wrong or lines or ["nothing"])[-1].strip()[-300:]

    def _put_back(self) -> str:
        layout, kept, unit = self.router.layout, quote(self._kept), quote(self.router.layout.unit)
        stop_unit(self.transport, layout.unit)
        if not self.transport.run(f"test -e {kept}/0", sudo=True, check=False).ok:
            paths = " ".join(map(quote, self.files.placed(layout)))
            self.transport.run(
                f"systemctl disable -q {unit} 2>/dev/null; rm -f {paths} {quote(layout.current)}; systemctl daemon-reload; "
                f"systemctl reset-failed {unit} 2>/dev/null; true",
                sudo=True,
            )
            return "there was none before: it is stopped"
        copies = [f"cp -p {kept}/{number} {quote(path)}" for number, path in enumerate(self.files.placed(layout))]
        link = f"cp -P --remove-destination {kept}/current {quote(layout.current)}"
        self.transport.run(f"{' && '.join([*copies, link])} && systemctl daemon-reload", sudo=True)
        self._restart()
        return "the one before was started again"
