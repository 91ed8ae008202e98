"""A fetched model under the checks of a pushed one: the host says what its files begin with and where they are zeros; the
laptop judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.checkpoint import header, model_folder, remote_zeros, validate, zeros
from deployer.checkpoint.header import Header
from deployer.errors import PreflightError
from deployer.hub import state
from deployer.hub.request import Request
from deployer.plan import reading
from deployer.plan.layout import Layout
from deployer.push.digest import Script
from deployer.push.model import Model
from deployer.push.plan import places
from deployer.transport.base import Transport

CONFIG = "config.json"
ZEROS = Script(
    Path(remote_zeros.__file__).read_text(encoding="utf-8"),
    failed="reading what was fetched failed",
    remedy="see dmesg and the disk there; what was fetched is kept, run the same again",
)


@dataclass(frozen=True)
class There:
    """The bytes of a file on the host, which looks for zeros itself. Raises TransferError."""

    transport: Transport
    path: str

    def empty(self, spans: Sequence[tuple[int, int]]) -> Sequence[bool]:
        found: list[bool] = ZEROS.ask(self.transport, "empty", self.path, spans)
        return found

    def pages(self) -> zeros.Runs:
        return tuple((begin, end) for begin, end in ZEROS.ask(self.transport, "pages", self.path))


def check(transport: Transport, layout: Layout, request: Request, model: Model) -> None:
    """Raises PreflightError that names what is wrong with the model in the host's store."""
    stored, names = places(layout, model), [blob.name for blob in model.blobs]
    paths = {blob.name: stored[blob.sha256] for blob in model.blobs}
    where = f"{transport.name}: {request.page}"
    if request.profile:
        answer = state.REMOTE.ask(transport, "heads", paths, {}, {})
        for name, found in _headers(answer["weights"]).items():
            validate.examine(where, found, request.profile, There(transport, paths[name]))
        return
    if CONFIG not in paths:
        raise PreflightError(
            f"{request.hub.repo} is no model: it has no {CONFIG}", where=where, remedy=f"correct [{request.section}]"
        )
    weights = {name: path for name, path in paths.items() if name.endswith(model_folder.WEIGHTS)}
    texts = {name: path for name, path in paths.items() if name == CONFIG or name.endswith(model_folder.INDEX)}
    checked = {name: path for name, path in paths.items() if name.endswith(".json")}
    answer = state.REMOTE.ask(transport, "heads", weights, texts, checked)
    damaged = tuple(f"{name}: is not JSON: {why}" for name, why in answer["damaged"].items())
    remedy = (
        f"its authors published it so: see {request.page}/discussions, or name another [{request.section}] revision"
    )
    model_folder.refuse(damaged, where, remedy)
    contents = {name: json.loads(text) for name, text in answer["texts"].items()}
    headers = _headers(answer["weights"])
    model_folder.refuse(model_folder.problems(names, headers, contents), where, remedy)
    model_folder.refuse(tuple(_damage(transport, headers, weights)), where, remedy)


def _damage(transport: Transport, headers: Mapping[str, Header], weights: Mapping[str, str]) -> Iterator[str]:
    """What only a look at every byte shows; all of it is read, and whoever watches is told after each file."""
    with reading.several(f"weights on {transport.name}", sum(found.size for found in headers.values())):
        for name, found in headers.items():
            reading.tell(name, 0, found.size)
            runs = There(transport, weights[name]).pages()
            reading.tell(name, found.size, found.size)
            yield from (f"{name}: {problem}" for problem in zeros.in_any(found, runs))


def _headers(weights: Mapping[str, list[Any]]) -> dict[str, Header]:
    return {
        name: header.made(Path(name), size, bytes.fromhex(start), text.encode())
        for name, (size, start, text) in weights.items()
    }
