"""Why a fetch failed, in the operator's words: each kind that the host's side tells apart, and what to do about it."""

from __future__ import annotations

from deployer.errors import DeployError, PreflightError, TransferError
from deployer.hub.request import Request
from deployer.hub.state import Status
from deployer.push import failure
from deployer.transport.base import Transport

AGAIN = "run the same command: what was fetched is kept and continued"


def explained(transport: Transport, request: Request, store: str, status: Status) -> DeployError:
    """The error for a fetch that failed."""
    if status.kind == "disk":
        found = failure.explained(transport, store, f"{request.hub.repo} (fetched from the hub)", status.text)
        if found:
            return found
    what, remedy = _said(transport.name, request, status)
    kind = PreflightError if status.kind in {"room", "gated", "repo", "revision", "entry", "refused"} else TransferError
    return kind(f"{what}: {status.text}", where=f"{transport.name}: {request.page}", remedy=remedy)


def _said(host: str, request: Request, status: Status) -> tuple[str, str]:
    hub, section = request.hub, request.section
    name = f'[{section}] token = {{ env = "HF_TOKEN" }} or {{ file = "PATH" }}'
    token = "see that the token is valid and may read this model" if hub.token else f"name a token: {name}"
    known: dict[str, tuple[str, str]] = {
        "network": (
            f"{host} does not reach the hub, or the line broke again and again",
            f"try there: curl -I {hub.endpoint}; if it has no way out, {request.otherwise}. What was fetched is kept",
        ),
        "busy": ("the hub is overloaded or asks to wait", f"later {AGAIN}"),
        "gated": (
            f"{hub.repo} is gated: its authors want their terms accepted first",
            f"accept them at {request.page} with the token's account; {token}",
        ),
        "repo": (
            f"the hub has no {hub.repo}, or it is private",
            f"correct [{section}] repo; if it is private, {token}",
        ),
        "refused": (f"the hub refuses {hub.repo}", token),
        "revision": (
            f"{hub.repo} has no revision {hub.revision}",
            f"see {request.page}/commits/main; correct [{section}] revision",
        ),
        "entry": (f"a file is not in {hub.repo} at {hub.revision}", f"see {request.page}/tree/{hub.revision}"),
        "room": (
            f"not enough room for {hub.repo}",
            f"ddtree-deploy gc {host}, or make room there, or set root to a larger file system",
        ),
        "damaged": (
            f"a file of {hub.repo} is not what the hub says it is",
            f"{AGAIN}; if it stays so, a proxy or a mirror on the way changes it",
        ),
        "strange": (f"{hub.repo} holds a file that is no part of a model", "see its files on the hub"),
        "disk": (f"{host} cannot write {hub.repo}", "see df, mount and dmesg there"),
    }
    return known.get(status.kind, (f"the fetch of {hub.repo} failed", f"{AGAIN}; journalctl -u {request.unit}"))


def vanished(transport: Transport, request: Request) -> TransferError:
    """The error for a fetch that ended without a word."""
    return TransferError(
        f"the fetch of {request.hub.repo} ended without a word: killed, or the host was restarted",
        where=f"{transport.name}: {request.unit}",
        remedy=f"see journalctl -u {request.unit} and dmesg there; {AGAIN}",
    )
