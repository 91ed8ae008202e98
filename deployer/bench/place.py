"""Where a bench works on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout


@dataclass(frozen=True)
class Bench:
    """Its paths and its port. Under /run: a reboot clears what an interrupted one left."""

    layout: Layout
    port: int

    @classmethod
    def of(cls, inventory: Inventory) -> Bench:
        """Beside the service: its own unit, port and state, the service's cache (compiled kernels)."""
        layout = Layout.of(inventory)
        return cls(replace(layout, service=f"{layout.service}-bench"), inventory.serve.port + 1)

    @property
    def folder(self) -> str:
        return f"/run/{self.layout.service}-work"

    @property
    def config(self) -> str:
        return f"{self.folder}/arm.yaml"

    @property
    def environment(self) -> str:
        return f"{self.folder}/arm.env"

    @property
    def client_environment(self) -> str:
        """The client's EnvironmentFile: root only, it may hold the API key."""
        return f"{self.folder}/client.env"

    @property
    def prompts(self) -> str:
        return f"{self.folder}/prompts.jsonl"

    @property
    def results(self) -> str:
        """The one folder that the client may write to."""
        return f"{self.folder}/result"

    @property
    def gpu_log(self) -> str:
        return f"{self.folder}/gpu.csv"

    @property
    def client_unit(self) -> str:
        return f"{self.layout.service}-client.service"

    @property
    def gpu_unit(self) -> str:
        return f"{self.layout.service}-gpu.service"

    @property
    def unit_file(self) -> str:
        return f"/run/systemd/system/{self.layout.unit}"
