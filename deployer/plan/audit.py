"""The host's audit log: one JSON line per change, with who, when, what and how it ended; bounded in size."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass

from deployer.errors import DeployError, Exit
from deployer.plan.layout import Layout
from deployer.plan.person import me, now
from deployer.transport.base import Transport

BOUND = 1 << 20  # bytes; at this size the log becomes audit.log.1, and the one before that goes: at most twice as much


@dataclass(frozen=True)
class Entry:
    """One change. `steps` are the titles of those carried out, `exit_code` and `outcome` how it ended, `reason` why
    somebody did it, where this program cannot know.
    """

    when: str
    who: str
    verb: str
    steps: tuple[str, ...]
    outcome: str
    exit_code: int
    reason: str = ""

    @classmethod
    def parse(cls, line: str) -> Entry | None:
        """None when the line is no entry: it was cut when the disk was full, or written by hand."""
        try:
            data = json.loads(line)
            return cls(**{**data, "steps": tuple(data["steps"])})
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def of(cls, verb: str, steps: list[str], error: BaseException | None = None, reason: str = "") -> Entry:
        """What has just ended, by whoever runs this program."""
        return cls(now(), me(), verb, tuple(steps), _outcome(error), int(code_of(error)), reason)


def code_of(error: BaseException | None) -> Exit:
    """The exit code that an error leads to."""
    if error is None:
        return Exit.OK
    if isinstance(error, DeployError):
        return error.exit_code
    return Exit.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.UNEXPECTED


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    what = error.what if isinstance(error, DeployError) else str(error)
    return f"{type(error).__name__}: {what}".splitlines()[0].removesuffix(": ")


def write(transport: Transport, layout: Layout, entry: Entry) -> None:
    """Appends one line; not on a host whose root is gone (after uninstall) or was never made."""
    root, state, audit = (shlex.quote(path) for path in (layout.root, layout.state, layout.audit))
    command = (
        f"test -d {root} || exit 0; mkdir -p {state}; "
        f'if [ "$(stat -c %s {audit} 2>/dev/null || echo 0)" -ge {BOUND} ]; then mv -f {audit} {audit}.1; fi; '
        f"cat >>{audit}"
    )
    transport.run(command, sudo=True, timeout=30.0, stdin=(json.dumps(asdict(entry)) + "\n").encode())


def read(transport: Transport, layout: Layout, limit: int) -> tuple[Entry, ...]:
    """The last `limit` readable entries, oldest first; none on a host that was never deployed to."""
    audit = shlex.quote(layout.audit)
    said = transport.run(f"cat {audit}.1 {audit} 2>/dev/null | tail -n {limit}", sudo=True).stdout
    return tuple(entry for line in said.splitlines() if (entry := Entry.parse(line)))
