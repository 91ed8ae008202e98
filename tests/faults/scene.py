"""The staging box with two deployments that replace each other, and the ways to look at it from outside."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.tool import Tool
from tests.lab.box import Lab
from tests.lab.nsproxy import Faults

REPOSITORY = Path(__file__).resolve().parents[2]
_ON_BOX = (Path(__file__).parent / "on_box.py").read_text()
# The parser's place: what the deployer asks of it is answered, and nothing of vLLM is imported.
_STAND_IN = """for r in /opt/ddtree/releases/*/venv; do
  { echo "#!$r/bin/python"; cat /run/engine; } >$r/bin/vllm
  cd $r/lib/python3*/site-packages/vllm && : >__init__.py && cd entrypoints && : >__init__.py && cd cli && : >__init__.py
  echo 'class ServeSubcommand: cmd = None' >serve.py
  printf '%s\\n' 'from . import serve' 'def main():' '    serve.ServeSubcommand.cmd(None)' >main.py
done"""
CT129, KPRO5 = "ct129", "kpro5"


@dataclass(frozen=True)
class Deployment:
    """What an inventory makes of the box: how the service decodes then is how the two are told apart."""

    inventory: Path
    decoding: str
    drafter: Path


@dataclass(frozen=True)
class Serving:
    """What answers on the box. `decoding` is None when nothing does."""

    active: str
    invocation: str
    decoding: str | None
    text: str

    def is_(self, deployment: Deployment) -> bool:
        """Whether it is this deployment, and gives the right answer."""
        return self.decoding == deployment.decoding and "the young captain keeps the lantern" in self.text


@dataclass(frozen=True)
class Scene:
    """The lab, and the two deployments; each is the next one after the other."""

    lab: Lab
    deployments: tuple[Deployment, Deployment]

    def inside(self, command: str, host: str = CT129, *, stdin: str = "", timeout: float = 300.0) -> str:
        """Output of a command as root in a container, without SSH: for when SSH is what is at fault."""
        argv = self.lab.attach(host, "/bin/sh", "-c", command)
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"{host}: {command}: {done.returncode}: {done.stderr[-800:]}"
        return done.stdout

    def _asked(self, verb: str) -> Any:
        return json.loads(self.inside("python3 -I -", stdin=f"{_ON_BOX}\nmain({verb!r})\n"))

    def serving(self) -> Serving:
        """What serves now."""
        said = self._asked("serving")
        return Serving(said["active"], said["invocation"], said.get("decoding"), said.get("text", ""))

    def half_done(self) -> list[str]:
        """What has a final name and is not what the name says."""
        found: list[str] = self._asked("half_done")
        return found

    def left_over(self) -> list[str]:
        """What only something unfinished has."""
        found: list[str] = self._asked("left_over")
        return found

    def serves(self, deployment: Deployment, within: float) -> Serving:
        """Waits until this deployment serves; gives what was seen last."""
        deadline = time.monotonic() + within
        while not (seen := self.serving()).is_(deployment) and time.monotonic() < deadline:
            time.sleep(1.0)
        return seen

    def other(self, deployment: Deployment) -> Deployment:
        one, two = self.deployments
        return two if deployment == one else one

    def settled(self) -> Deployment:
        """The deployment that serves; what an earlier fault left behind is mended first."""
        self.lab.set_faults(Faults())
        self.reachable()
        seen = self.serving()
        for deployment in self.deployments:
            if seen.is_(deployment):
                return deployment
        self.inside("rm -rf /run/lock/ddtree-vllm.deploy; rm -f /opt/ddtree/filler*")
        ended = Tool("up", self.deployments[0].inventory).ended(900)
        assert ended.code == 0, f"nothing serves, and nothing can be made to:\n{ended.output[-3000:]}"
        return self.deployments[0]

    def release(self, deployment: Deployment) -> str:
        """The release of the last deployment of this kind that has proved itself."""
        lines = self.inside("cat /opt/ddtree/state/deployments/*Z-*/record.json").splitlines()
        records = sorted((json.loads(line) for line in lines), key=lambda record: str(record["id"]))
        mine = [r for r in records if r["outcome"] == "serving" and str(r["decoding"]).startswith(("tree", "DFlash"))]
        return str(next(r["release"] for r in reversed(mine) if _kind(r["decoding"]) == deployment.decoding))

    def put_stand_in_engine(self) -> None:
        """In every release, in the place of vLLM's command and of its parser: to play the cells in a fraction of the
        time.
        """
        text = (REPOSITORY / "tests/lab/stand_in_vllm.py").read_text()
        self.inside(f"cat >/run/engine; {_STAND_IN}; systemctl restart ddtree-vllm", stdin=text)

    def reachable(self, within: float = 60.0) -> None:
        """Waits until the box answers over SSH."""
        deadline = time.monotonic() + within
        while subprocess.run(self.lab.ssh(CT129, "true"), capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, "the box does not come back"
            time.sleep(0.2)


def _kind(decoding: str) -> str:
    return "tree" if decoding.startswith("tree") else "chain"


def staging(lab: Lab, path: Path, **changes: str) -> Path:
    """The repository's staging inventory at `path`: absolute paths, this lab's SSH configuration, and `changes`, of
    which each is a setting that the inventory has, and its new value as TOML."""
    text = (REPOSITORY / "inventory/staging.toml").read_text()
    text = text.replace("../build/lab/ssh_config", str(lab.place.ssh_config))
    text = text.replace('"../', f'"{REPOSITORY}/').replace('"profiles/', f'"{REPOSITORY}/inventory/profiles/')
    text = text.replace('"staging-prompts', f'"{REPOSITORY}/inventory/staging-prompts')
    for name, value in changes.items():
        text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
        assert count == 1, f"the staging inventory has no one setting {name}"
    path.write_text(text)
    return path
