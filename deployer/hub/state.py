"""How far a fetch is, as the host says: whether it runs, how it ended, and which files the commit has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.hub import remote_state
from deployer.hub.request import Request
from deployer.plan.layout import Layout
from deployer.push.digest import Script
from deployer.push.model import Blob, Model
from deployer.transport.base import Transport

REMOTE = Script(
    Path(remote_state.__file__).read_text(encoding="utf-8"),
    failed="looking after the fetch failed",
    remedy="see df, mount and dmesg there; what was fetched is kept, run the same again",
)


@dataclass(frozen=True)
class Status:
    """`state` is running, done or failed; bytes; `kind` and `text` say why it failed."""

    state: str
    done: int
    total: int
    kind: str
    text: str


@dataclass(frozen=True)
class Listed:
    """One file of the commit; `sha256` is None until a file that the hub keeps in git was fetched."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Record:
    """The commit that a request stands for on this host, from the first fetch on."""

    commit: str
    when: str
    files: tuple[Listed, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def model(self, request: Request) -> Model | None:
        """None as long as not every file's SHA-256 is known."""
        known = tuple(Blob(file.name, file.sha256, file.size) for file in self.files if file.sha256)
        return Model(request.kind, request.slug, known, request.texts) if len(known) == len(self.files) else None


@dataclass(frozen=True)
class State:
    """`active`: it runs now."""

    active: bool
    status: Status | None
    record: Record | None


def read(transport: Transport, layout: Layout, request: Request) -> State:
    """Looks; no effect. Raises TransferError."""
    answer = REMOTE.ask(transport, "state", request.folder(layout), request.unit)
    status, record = answer["status"], answer["record"]
    return State(
        active=answer["active"],
        status=Status(**status) if status else None,
        record=Record(record["commit"], record["when"], tuple(_listed(file) for file in record["files"]))
        if record
        else None,
    )


def _listed(file: dict[str, Any]) -> Listed:
    return Listed(file["name"], file["size"], file["sha256"])
