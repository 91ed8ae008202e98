"""One deployment at a time per host and service: a folder on the host, whose creation is atomic, with who, when and
what.
"""

from __future__ import annotations

import getpass
import json
import shlex
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from deployer.errors import DeployError, LockedError
from deployer.plan.layout import Layout
from deployer.transport.base import Transport

TAKEN = 75  # the shell's answer when the folder is there already (EX_TEMPFAIL)


@dataclass(frozen=True)
class Owner:
    """Who holds a lock, since when (UTC), doing what."""

    who: str
    since: str
    verb: str
    token: str

    @classmethod
    def me(cls, verb: str) -> Owner:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(who=f"{getpass.getuser()}@{socket.gethostname()}", since=since, verb=verb, token=uuid.uuid4().hex)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """None when the text is no owner: its writer was killed in between."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"{self.who}, {self.verb}, since {self.since}"


@contextmanager
def held(transport: Transport, layout: Layout, verb: str) -> Iterator[None]:
    """Holds the host's lock; released however the block is left. Raises LockedError that says who holds it."""
    owner = Owner.me(verb)
    _take(transport, layout, owner)
    try:
        yield
    except BaseException:
        # The first error is the one to show; a lock that stays is named to the next who meets it.
        with suppress(DeployError):
            _release(transport, layout, owner)
        raise
    _release(transport, layout, owner)


def look(transport: Transport, layout: Layout) -> Owner | None:
    """Who holds the lock, or None."""
    result = transport.run(f"cat {_owner_file(layout)}", sudo=True, check=False)
    return Owner.parse(result.stdout) if result.ok else None


def break_it(transport: Transport, layout: Layout) -> None:
    """Removes the lock whoever holds it."""
    transport.run(f"rm -rf {shlex.quote(layout.lock)}", sudo=True)


def _owner_file(layout: Layout) -> str:
    return shlex.quote(f"{layout.lock}/owner")


def _take(transport: Transport, layout: Layout, owner: Owner) -> None:
    folder = shlex.quote(layout.lock)
    command = (
        f"mkdir -p {shlex.quote(layout.lock.rpartition('/')[0])} && "
        f"if mkdir {folder} 2>/dev/null; then cat >{_owner_file(layout)}; "
        f"else cat {_owner_file(layout)} 2>/dev/null; exit {TAKEN}; fi"
    )
    result = transport.run(command, sudo=True, check=False, stdin=json.dumps(asdict(owner)).encode())
    if result.returncode == TAKEN:
        holder = Owner.parse(result.stdout)
        raise LockedError(
            f"a deployment is under way: {holder or 'its owner left no name'}",
            where=f"{transport.name}:{layout.lock}",
            remedy=f"wait for it; if it was killed: ddtree-deploy lock {transport.name} --break",
        )
    if not result.ok:
        raise DeployError(f"the lock cannot be taken: {result.stderr.strip()}", where=f"{transport.name}:{layout.lock}")


def _release(transport: Transport, layout: Layout, owner: Owner) -> None:
    """Removes the lock if it is still ours."""
    folder = shlex.quote(layout.lock)
    transport.run(f"grep -qsF {owner.token} {_owner_file(layout)} && rm -rf {folder} || true", sudo=True)
