"""The switch from one deployment to another, and the way back when the new one does not prove itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote

from deployer.errors import DeployError, GateError, RollbackError
from deployer.facts import gpu
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve import gate
from deployer.serve.decoding import Decoding
from deployer.serve.gate import Clock, Wanted
from deployer.serve.records import Record, Records
from deployer.serve.service import Service, stop_unit

_JOURNAL = 20
_GPU_WAIT = 60.0
_GPU_IDLE_MIB = 1024


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

    def start(self, progress: Progress) -> None:
        """Stops what runs, puts the new files in place, starts. A failure restores what ran before."""
        self._guarded(lambda: self._start(progress), progress)

    def prove(self, progress: Progress) -> None:
        """The gate; on success the deployment becomes the active one, else what ran before is restored."""
        self._guarded(lambda: self._prove(progress), progress)

    def _start(self, progress: Progress) -> None:
        progress.say(f"stopping {self.service.layout.unit}")
        self.service.stop()
        if self.foreign:
            progress.say(f"stopping {self.foreign}")
            stop_unit(self.service.transport, self.foreign)
        wait_for_memory(self.service, progress)
        self.records.put_in_place(self.new)
        progress.say(f"starting {self.service.layout.unit}: {self.new.decoding}, release {self.new.release}")
        self.service.start()

    def _prove(self, progress: Progress) -> None:
        proof = gate.prove(self.service, self.wanted, progress.say)
        units = [f"systemctl enable -q {quote(self.service.layout.unit)}"]
        if self.foreign:
            units.append(f"systemctl disable -q {quote(self.foreign)} 2>/dev/null || true")
        self.service.transport.run("; ".join(units), sudo=True)
        self.records.activate(self.new)
        progress.say(str(proof))

    def _guarded(self, action: Callable[[], None], progress: Progress) -> None:
        try:
            action()
        except DeployError as error:
            raise self._restored(error, progress) from error
        except BaseException as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error!r}"
            progress.say(f"{why}; restoring what ran before")
            with suppress(DeployError):
                self.records.mark(self.new, why)
                self._restore(progress)
            raise

    def _restored(self, error: DeployError, progress: Progress) -> DeployError:
        for line in self._tail():
            progress.say(line[:200])
        progress.say(f"the gate failed: {error.what}")
        try:
            self.records.mark(self.new, f"failed: {error.what}")
            self._restore(progress)
        except DeployError as second:
            return RollbackError(
                f"{error.what}; and what ran before could not be restored: {second.what}",
                where=self.service.endpoint.where,
                remedy=second.remedy or "look at the host: systemctl status, journalctl, then serve or rollback again",
            )
        return GateError(
            f"{error.what}; {self._now()}", where=error.where or self.service.endpoint.where, remedy=error.remedy
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
        return f"{self.before.id} was restored and {'serves' if self.ran else 'is stopped, as it was'}"

    def _restore(self, progress: Progress) -> None:
        """A second interrupt waits until what ran before is started again; only the look whether it answers can be cut."""
        with held_back():
            self._put_back(progress)
        if self._returns is not None:
            enough = Decoding("chain", 0)
            wanted = replace(self.wanted, model=self._returns.model, expect=None, min_acceptance_length=1.0)
            gate.prove(self._returns, replace(wanted, decoding=enough), progress.say)

    @property
    def _returns(self) -> Service | None:
        """The one before, at its own address, if it comes back. It proved itself then: that it answers is enough."""
        if self.foreign or self.before is None or not self.ran:
            return None
        port, model = self.records.address(self.before)
        return replace(self.service, model=model, endpoint=replace(self.service.endpoint, port=port))

    def _put_back(self, progress: Progress) -> None:
        self.service.stop()
        wait_for_memory(self.service, progress)
        if self.before is None:
            self.records.take_away()
        else:
            progress.say(f"restoring {self.before}")
            self.records.put_in_place(self.before)
        if self.foreign:
            progress.say(f"starting {self.foreign} again")
            self.service.transport.run(f"systemctl start {quote(self.foreign)}", sudo=True, timeout=120.0)
        elif self._returns is not None:
            self._returns.start()


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
