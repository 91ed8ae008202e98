"""The switch from one deployment to another, and the way back when the new one does not prove itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from shlex import quote

from deployer.errors import DeployError, GateError, RollbackError, TransferError
from deployer.facts import gpu
from deployer.fleet.traffic import UNROUTED, Traffic
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve import gate
from deployer.serve.decoding import Decoding, kind_of
from deployer.serve.gate import Clock, Wanted
from deployer.serve.records import OLD, Record, Records
from deployer.serve.service import LEFT, STOPS, Service, stop_command, stop_unit
from deployer.serve.way_back import WayBack
from deployer.transport.base import SILENCE

_JOURNAL = 20
_GPU_WAIT = 60.0
_GPU_IDLE_MIB = 1024
_AROUND = STOPS + _GPU_WAIT + SILENCE  # seconds that a switch may take beyond the gate's own: a drain, a start
# The same wait as below, in the host's own words.
_MEMORY = f"""\
tries=0
while used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | sort -n | tail -n 1) &&
  [ "${{used:-0}}" -ge {_GPU_IDLE_MIB} ] 2>/dev/null && [ $tries -lt {_GPU_WAIT:.0f} ]; do
  sleep 1; tries=$((tries + 1))
done"""


@dataclass(frozen=True)
class Switch:
    """`new` replaces `before` (None: nothing was deployed), and `foreign`, somebody else's unit that holds the GPUs.

    `ran` says whether `before` was running: only then the way back ends with a start.
    """

    service: Service
    records: Records
    new: Record
    before: Record | None
    ran: bool
    wanted: Wanted
    foreign: str | None = None
    traffic: Traffic = UNROUTED

    @cached_property
    def way(self) -> WayBack:
        """How the host gets back by itself."""
        return WayBack(self.service.transport, self.service.layout, self.wanted.timeout + _AROUND)

    def start(self, progress: Progress) -> None:
        """Stops what runs, puts the new files in place, starts. A failure restores what ran before."""
        if self._ran:
            self.traffic.hold(self.service, progress)
        try:
            self._prepare(progress)
        except BaseException:
            if self._ran:
                self._requests_come_again(progress)
            raise
        self._guarded(lambda: self._start(progress), progress)

    def prove(self, progress: Progress) -> None:
        """The gate; on success the deployment becomes the active one, else what ran before is restored."""
        self._guarded(lambda: self._prove(progress), progress)
        self.traffic.resume(progress)

    def _prepare(self, progress: Progress) -> None:
        """All that can fail before anything stops: the files of both deployments on the disk, and the way back."""
        self.way.take()  # of a switch that nobody ended
        try:
            self.records.stage(self.new, self.before)
            script = way_back_script(self.service, self.records, self.before, self._comes_back, self.foreign)
            if not self.way.keep(script):
                progress.say("the host cannot watch over this switch: if this program is killed, rollback goes back")
        except BaseException:
            self._settle()
            raise

    def _settle(self) -> None:
        """The switch has ended, one way or the other: what was kept for it goes."""
        self.way.end()
        with suppress(DeployError):
            self.records.unstage()

    def _start(self, progress: Progress) -> None:
        progress.say(f"stopping {self.service.layout.unit}")
        self.service.stop()
        if self.foreign:
            progress.say(f"stopping {self.foreign}")
            stop_unit(self.service.transport, self.foreign)
        wait_for_memory(self.service, progress)
        self.records.put_in_place()
        progress.say(f"starting {self.service.layout.unit}: {self.new.decoding}, release {self.new.release}")
        self.service.start()

    def _prove(self, progress: Progress) -> None:
        try:
            proof = gate.prove(self.service, self.wanted, progress.say)
        except GateError:
            if not self.way.stands():
                raise self._gone_back() from None  # it was the one before that was asked
            raise
        units = [f"systemctl enable -q {quote(self.service.layout.unit)}"]
        if self.foreign:
            units.append(f"systemctl disable -q {quote(self.foreign)} 2>/dev/null || true")
        self.service.transport.run("; ".join(units), sudo=True)
        # What can fail comes first: without the way there is no going back.
        if not self.way.close(self.records.proved(self.new)):
            raise self._gone_back()
        self._settle()
        progress.say(str(proof))

    def _gone_back(self) -> GateError:
        return GateError(
            "the connection was lost or the host restarted, and the host went back by itself",
            where=self.service.where,
            remedy="run the same again",
        )

    def _guarded(self, action: Callable[[], None], progress: Progress) -> None:
        try:
            action()
        except DeployError as error:
            raise self._restored(error, progress) from error
        except BaseException as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error!r}"
            progress.say(f"{why}; restoring what ran before")
            self._mark(why)
            with suppress(DeployError):
                self._restore(progress)
            raise

    def _mark(self, outcome: str) -> None:
        """How it ended, for the record: a full disk or a broken line keeps nobody from going back."""
        with suppress(DeployError):
            self.records.mark(self.new, outcome)

    def _restored(self, error: DeployError, progress: Progress) -> DeployError:
        for line in self._tail():
            progress.say(line[:200])
        progress.say(f"the gate failed: {error.what}")
        self._mark(f"failed: {error.what}")
        try:
            self._restore(progress)
        except DeployError as second:
            if isinstance(second, TransferError) and self.way.watched:
                return self._left_to_the_host(error)
            return RollbackError(
                f"{error.what}; and what ran before could not be restored: {second.what}",
                where=self.service.endpoint.where,
                remedy=second.remedy or "look at the host: systemctl status, journalctl, then serve or rollback again",
            )
        return GateError(
            f"{error.what}; {self._now()}", where=error.where or self.service.endpoint.where, remedy=error.remedy
        )

    def _left_to_the_host(self, error: DeployError) -> TransferError:
        goes_back = (
            f"starts {self.foreign}" if self.foreign else f"restores {self.before.id}" if self.before else "stops it"
        )
        return TransferError(
            f"{error.what}; the host {goes_back} by itself",
            where=error.where or self.service.endpoint.where,
            remedy="when it can be reached again: ddtree-deploy status, then the same command",
        )

    def _tail(self) -> tuple[str, ...]:
        with suppress(DeployError):
            return tuple(line for line in self.service.journal(4 * _JOURNAL) if " Route: " not in line)[-_JOURNAL:]
        return ()

    def _now(self) -> str:
        if self.foreign:
            return f"{self.foreign} was started again"
        if self.before is None:
            return "nothing ran before; the service is stopped"
        return f"{self.before.id} was restored and {'serves' if self._comes_back else 'is stopped, as it was'}"

    def _restore(self, progress: Progress) -> None:
        """A second interrupt waits until what ran before is started again; only the look whether it answers can be cut."""
        with held_back():
            self._put_back(progress)
        if self._returns is not None:
            drafts = self.before is not None and kind_of(self.before.decoding) != "autoregressive"
            enough = Decoding("chain" if drafts else "autoregressive", 0)
            wanted = replace(self.wanted, model=self._returns.model, expect=None, min_acceptance_length=1.0)
            gate.prove(self._returns, replace(wanted, decoding=enough), progress.say)
            self._requests_come_again(progress)

    def _requests_come_again(self, progress: Progress) -> None:
        """To what serves as it did before. That a router does not send there is said, and is not what failed."""
        try:
            self.traffic.resume(progress)
        except DeployError as error:
            progress.say(error.what)

    @property
    def _comes_back(self) -> bool:
        """Whether the way back ends with a start of the one before."""
        return self.before is not None and self._ran and not self.foreign

    @cached_property
    def _ran(self) -> bool:
        """When the plan was made it may have been down only because a switch was cut short."""
        return self.ran or self.service.state().running

    @property
    def _returns(self) -> Service | None:
        """The one before, at its own address, if it comes back. It proved itself then: that it answers is enough."""
        if self.before is None or not self._comes_back:
            return None
        port, model = self.records.address(self.before)
        return replace(self.service, model=model, endpoint=replace(self.service.endpoint, port=port))

    def _put_back(self, progress: Progress) -> None:
        progress.say(f"restoring {self.before}" if self.before else "removing what was put in place")
        self.way.take()
        self._settle()


def way_back_script(
    service: Service, records: Records, before: Record | None, comes_back: bool, foreign: str | None
) -> str:
    """What brings back `before` (None: nothing was deployed), started if it `comes_back`, and `foreign`."""
    unit = quote(service.layout.unit)
    lines = [
        "#!/bin/sh",
        "# Written by ddtree-deploy; gone when the switch has ended.",
        "set -e",
        "export LC_ALL=C",
        f"({stop_command(service.layout.unit)}) || test $? -eq {LEFT}  # what does not end is no reason not to go back",
        _MEMORY,
        f"{records.renames(OLD)}" if before else f"{records.absence}",
        f"rm -f {records.staged}",
        "systemctl daemon-reload",
    ]
    if foreign:
        lines.append(f"systemctl start {quote(foreign)}")
    elif comes_back:
        lines += [f"systemctl reset-failed {unit} 2>/dev/null || true", f"systemctl start --no-block {unit}"]
    return "\n".join([*lines, ""])


def wait_for_memory(service: Service, progress: Progress, clock: Clock | None = None) -> None:
    """Waits until the GPUs' memory has fallen: a process is gone before its memory is. At once on a CPU host."""
    clock = clock or Clock()
    deadline = clock.now() + _GPU_WAIT
    while True:
        used = [card.memory_total - card.memory_free for card in gpu.read(service.transport).cards]
        if all(mib < _GPU_IDLE_MIB for mib in used):
            return
        if clock.now() > deadline:
            progress.say(f"GPU memory is still in use after {_GPU_WAIT:.0f} s: {used} MiB")
            return
        clock.sleep(1.0)
