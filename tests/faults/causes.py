"""The faults: how each is caused, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.scene import KPRO5, Scene
from tests.faults.tool import Tool
from tests.lab.nsproxy import Faults


@dataclass(frozen=True)
class Cause:
    """`cause` happens while a step is under way. `mend` ends it: after the tool has ended, or when it says `mended_at`."""

    name: str
    cause: Callable[[Scene, Tool], None]
    mend: Callable[[Scene], None] = lambda scene: None


def _nothing(scene: Scene) -> None: ...


def _cut(scene: Scene, tool: Tool) -> None:
    """Every connection is reset at its next byte, and none is made again."""
    scene.lab.set_faults(Faults(cut_after=1, refuse=True))


def _link_mended(scene: Scene) -> None:
    scene.lab.set_faults(Faults())


def _sshd_killed(scene: Scene, tool: Tool) -> None:
    """The daemon and all its sessions; systemd starts the daemon again."""
    scene.inside("pkill -KILL -x sshd; systemctl start ssh")


def _tool_killed(scene: Scene, tool: Tool) -> None:
    tool.kill()


def _disk_filled(scene: Scene, tool: Tool) -> None:
    """Not one byte is left where everything of ours lies."""
    scene.inside(
        "cd /opt/ddtree && fallocate -l $(df --output=avail -B1 . | tail -n 1) filler 2>/dev/null; "
        "dd if=/dev/zero of=filler2 bs=4k 2>/dev/null; true"
    )


def _room_made(scene: Scene) -> None:
    scene.inside("rm -f /opt/ddtree/filler /opt/ddtree/filler2")


def _rebooted(scene: Scene, tool: Tool) -> None:
    """As by a power cut: nothing is asked to end."""
    scene.inside("pct stop 129; pct start 129", KPRO5)


def _crashed(scene: Scene, tool: Tool) -> None:
    """The service's main process is killed."""
    scene.inside("kill -KILL $(systemctl show -P MainPID ddtree-vllm)")


LINK_CUT = Cause("link cut", _cut, _link_mended)
SSHD_KILLED = Cause("sshd killed", _sshd_killed)
TOOL_KILLED = Cause("tool killed", _tool_killed)
DISK_FULL = Cause("disk full", _disk_filled, _room_made)
REBOOTED = Cause("box rebooted", _rebooted, lambda scene: scene.reachable())
CRASHED = Cause("service crash", _crashed)


def _second(scene: Scene, tool: Tool) -> None:
    """A second deployer is started by the cell itself, which judges it."""


TWO_DEPLOYERS = Cause("two deployers", _second)
CAUSES = (LINK_CUT, SSHD_KILLED, TOOL_KILLED, DISK_FULL, REBOOTED, CRASHED, TWO_DEPLOYERS)
