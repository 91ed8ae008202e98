"""Results on the host, one file per arm, named after all that decides the numbers: measured once, not again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from deployer.bench.arms import Arm
from deployer.bench.result import ArmResult
from deployer.plan.layout import Layout
from deployer.transport.base import Transport


@dataclass(frozen=True)
class Store:
    """ROOT/state/bench/<release>-<arm>-<digest>.json."""

    transport: Transport
    layout: Layout
    release: str

    def path(self, arm: Arm) -> str:
        """Where the result of `arm` is kept."""
        return f"{self.layout.state}/bench/{self.release}-{arm.name}-{arm.digest}.json"

    def read(self, arms: Sequence[Arm]) -> dict[str, ArmResult]:
        """The results that are there, by the arm's name."""
        paths = " ".join(quote(self.path(arm)) for arm in arms)
        lines = self.transport.run(f"cat {paths} 2>/dev/null || true", sudo=True).stdout.splitlines()
        return {result.name: result for result in map(ArmResult.from_json, lines)}

    def write(self, arm: Arm, result: ArmResult) -> None:
        """Keeps one result."""
        self.transport.run(f"umask 022; mkdir -p {quote(self.layout.state)}/bench", sudo=True)
        self.transport.write(result.to_json().encode(), self.path(arm), sudo=True)
