"""vllm-router's admin side, asked on the router's own host: who is behind it, and who is to be.

It knows no authentication (0.1.17): whoever may connect may change it. The unit's allow-list is its boundary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from deployer.errors import PreflightError
from deployer.fleet.inventory import Router
from deployer.serve.endpoint import Answer, Endpoint
from deployer.transport.base import Transport

_ANOTHER = "see what listens on that port, and the router's [serve] port"
_PATIENCE = 60.0  # seconds; the router asks a box for its health before it takes it


def endpoint_of(router: Router, transport: Transport) -> Endpoint:
    """The router's HTTP side on its host."""
    return Endpoint(transport, router.serve.port, router.layout.environment, router.install.python)


class Asked(Protocol):
    """The router's HTTP side; see Endpoint."""

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 10.0) -> Answer: ...
    @property
    def where(self) -> str: ...


@dataclass(frozen=True)
class Worker:
    """One box as the router sees it."""

    url: str
    healthy: bool


@dataclass(frozen=True)
class Api:
    """Raises PreflightError with the router's own words when it refuses."""

    asked: Asked

    def workers(self) -> tuple[Worker, ...] | None:
        """Who is behind it, or None when no router answers: then nothing comes through it."""
        answer = self.asked.ask("/workers")
        if answer.status == 0:
            return None
        text = self._good(answer).text
        try:
            return tuple(Worker(str(one["url"]), bool(one["is_healthy"])) for one in json.loads(text)["workers"])
        except (ValueError, KeyError, TypeError) as error:
            raise PreflightError(
                f"what answers is no vllm-router: {text[:200]!r}", where=self.asked.where, remedy=_ANOTHER
            ) from error

    def remove(self, url: str) -> None:
        """No new request goes there; those under way are not touched."""
        self._good(self.asked.ask(f"/remove_worker?url={quote(url, safe='')}", {}))

    def add(self, url: str) -> None:
        """Requests go there again. It waits until the box is healthy."""
        answer = self.asked.ask(f"/add_worker?url={quote(url, safe='')}", {}, timeout=_PATIENCE)
        if "already exists" not in answer.text:
            self._good(answer)

    def _good(self, answer: Answer) -> Answer:
        if not answer.ok:
            raise PreflightError(
                f"the router answers {answer.status or 'nothing'}: {answer.text[:200]}",
                where=self.asked.where,
                remedy="see its journal on its host, or ddtree-deploy router status",
            )
        return answer
