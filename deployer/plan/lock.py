"""One deployment at a time per host and service: a folder on the host, whose creation is atomic, with who, when and
what.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from deployer.errors import DeployError, LockedError, PreflightError
from deployer.plan import alive
from deployer.plan.layout import Layout
from deployer.plan.person import me, now
from deployer.plan.signals import held_back
from deployer.transport.base import Transport

PATIENCE = 30.0  # seconds, in which signals wait
TAKEN = 75  # the shell's answer when the folder is there already (EX_TEMPFAIL)


@dataclass(frozen=True)
class Owner:
    """Who holds a lock, since when (UTC), doing what. `token` tells two locks of one person apart."""

    who: str
    since: str
    verb: str
    token: str

    @classmethod
    def me(cls, verb: str) -> Owner:
        return cls(who=me(), since=now(), verb=verb, token=uuid.uuid4().hex)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """None when the text is no owner: its writer was killed in between."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"{self.who}, {self.verb}, since {self.since}" if self.token else "its owner left no name"


NAMELESS = Owner(who="", since="", verb="", token="")


@contextmanager
def held(transport: Transport, layout: Layout, verb: str) -> Iterator[None]:
    """Holds the host's lock; released however the block is left. Raises LockedError that says who holds it.

    Signals wait while it is taken and while it is released: neither is ever half done. A lock is taken over when its
    owner ran on this machine and does so no longer: it was killed, or it could not reach the host to give it back.
    """
    owner = Owner.me(verb)
    with alive.shown(owner.token), _taken(transport, layout, owner):
        yield


@contextmanager
def _taken(transport: Transport, layout: Layout, owner: Owner) -> Iterator[None]:
    refused = False
    try:
        with held_back():
            try:
                _take_over(transport, layout, owner)
            except (LockedError, PreflightError):
                refused = True
                alive.remove(owner.token)
                raise
        yield
    except BaseException:
        # The first error is the one to show; a lock that stays is taken over by the next from here, named to others.
        # After a broken line it may have been taken or not: a release is right in both cases.
        with suppress(DeployError), held_back():
            if not refused:
                _release(transport, layout, owner)
        raise
    with held_back():
        _release(transport, layout, owner)


def look(transport: Transport, layout: Layout) -> Owner | None:
    """Who holds the lock, or None; NAMELESS when its writer was killed before it left a name."""
    command = f"test -d {shlex.quote(layout.lock)} || exit 0; cat {_owner_file(layout)} 2>/dev/null; echo"
    said = transport.run(command, sudo=True).stdout
    return (Owner.parse(said) or NAMELESS) if said else None


def break_it(transport: Transport, layout: Layout, owner: Owner) -> None:
    """Removes the lock that `owner` was seen to hold. Raises LockedError if somebody else has taken it meanwhile."""
    folder = shlex.quote(layout.lock)
    still = f"grep -qsF {shlex.quote(owner.token)}" if owner.token else "! test -s"
    command = f"if {still} {_owner_file(layout)}; then rm -rf {folder}; else ! test -d {folder}; fi"
    if not transport.run(command, sudo=True, check=False).ok:
        raise LockedError(
            "the lock is no longer the one that was looked at",
            where=f"{transport.name}:{layout.lock}",
            remedy=f"see who holds it now: ddtree-deploy lock {transport.name}",
        )


def _owner_file(layout: Layout) -> str:
    return shlex.quote(f"{layout.lock}/owner")


def _take_over(transport: Transport, layout: Layout, owner: Owner) -> None:
    """Takes the lock. It is somebody else's only as long as that somebody may still be at work."""
    holder = _take(transport, layout, owner)
    if holder and holder.token and alive.ended(holder.token):
        break_it(transport, layout, holder)
        alive.remove(holder.token)
        holder = _take(transport, layout, owner)
    if holder:
        raise LockedError(
            f"a deployment is under way: {holder}",
            where=f"{transport.name}:{layout.lock}",
            remedy=f"wait for it; if it was killed: ddtree-deploy lock {transport.name} --break REASON",
        )


def _take(transport: Transport, layout: Layout, owner: Owner) -> Owner | None:
    """Takes the lock, or says who holds it."""
    folder = shlex.quote(layout.lock)
    command = (
        f"mkdir -p {shlex.quote(layout.lock.rpartition('/')[0])} && "
        f"if mkdir {folder} 2>/dev/null; then cat >{_owner_file(layout)}; "
        f"else cat {_owner_file(layout)} 2>/dev/null; exit {TAKEN}; fi"
    )
    result = transport.run(command, sudo=True, check=False, timeout=PATIENCE, stdin=json.dumps(asdict(owner)).encode())
    if result.returncode == TAKEN:
        return Owner.parse(result.stdout) or NAMELESS
    if not result.ok:
        raise PreflightError(
            f"the lock cannot be taken: {result.stderr.strip()}",
            where=f"{transport.name}:{layout.lock}",
            remedy="is the file system there full or read-only?",
        )
    return None


def _release(transport: Transport, layout: Layout, owner: Owner) -> None:
    """Removes the lock if it is still ours."""
    folder = shlex.quote(layout.lock)
    transport.run(
        f"grep -qsF {owner.token} {_owner_file(layout)} && rm -rf {folder} || true", sudo=True, timeout=PATIENCE
    )
    alive.remove(owner.token)
