"""One staging box, and one inventory that points to it, for all deployments of this room."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.scene import staging
from tests.faults.table import pytest_terminal_summary
from tests.faults.tool import PROGRAM, Ended, Tool
from tests.lab.box import Lab
from tests.lab.fixture import staging_lab

__all__ = ["pytest_terminal_summary", "staging_lab"]
REPO = Path(__file__).resolve().parents[2]
DRAIN = 60  # seconds that running requests are given when the service stops


@dataclass(frozen=True)
class Deployer:
    """The installed `ddtree-deploy`, aimed at the staging box."""

    inventory: Path
    lab: Lab

    def command(self, verb: str, *options: str) -> list[str]:
        return [str(PROGRAM), verb, str(self.inventory), *options]

    def started(self, verb: str, *options: str) -> subprocess.Popen[str]:
        """The same, running; its stdout is read here."""
        return subprocess.Popen(self.command(verb, *options), cwd=REPO, stdout=subprocess.PIPE, text=True)

    def run(self, verb: str, *options: str, timeout: float = 1500) -> Ended:
        """`ddtree-deploy VERB INVENTORY OPTIONS`."""
        return Tool(verb, self.inventory, *options).ended(timeout)

    def ok(self, verb: str, *options: str) -> Ended:
        return self.run(verb, *options).well()

    def ct129(self, command: str) -> str:
        """Output of a command inside CT129, as root, whatever its exit code."""
        done = subprocess.run(
            self.lab.ssh("ct129", f"sudo sh -c {command!r}"), capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def deployer(staging_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Deployer:
    """The repository's staging inventory, its paths made absolute and its SSH configuration this lab's, with a longer drain."""
    path = staging(staging_lab, tmp_path_factory.mktemp("inventory") / "staging.toml")
    path.write_text(path.read_text().replace("[serve.options]", f"[serve.options]\nshutdown-timeout = {DRAIN}"))
    return Deployer(path, staging_lab)
