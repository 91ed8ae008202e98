"""The service's way back, kept by the host itself: if the laptop never comes to start it again, a timer does."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from deployer.bench.place import Bench
from deployer.transport.base import Transport


@dataclass(frozen=True)
class Guard:
    """A transient timer of the host. It runs for as long as the step that comes may take, and some minutes more."""

    transport: Transport
    bench: Bench
    unit: str

    @property
    def name(self) -> str:
        return f"{self.bench.layout.service}-return"

    def keep(self, seconds: float) -> None:
        """From now on, `seconds`; a time that was set before is forgotten."""
        ours = (self.bench.layout.unit, f"{self.bench.client_unit}.service", f"{self.bench.gpu_unit}.service")
        back = f"systemctl stop {' '.join(map(quote, ours))}; systemctl start {quote(self.unit)}"
        self.transport.run(
            f"{self._off}; systemd-run --quiet --collect --unit={quote(self.name)} --on-active={seconds:.0f} "
            f"--timer-property=AccuracySec=1s /bin/sh -c {quote(back)}",
            sudo=True,
        )

    def end(self) -> None:
        """The service was started: nothing is left to do."""
        self.transport.run(f"{self._off}; true", sudo=True)

    @property
    def _off(self) -> str:
        return f"systemctl stop {quote(f'{self.name}.timer')} 2>/dev/null"
