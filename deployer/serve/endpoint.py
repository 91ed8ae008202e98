"""Asks an engine over HTTP on its own host: it binds loopback there, and every transport can run a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from deployer.errors import GateError
from deployer.serve import metrics
from deployer.transport.base import Transport

# Runs on the host from stdin. The API key is read there, from the file that only root reads: it travels nowhere.
_CLIENT = """
import json, sys, urllib.error, urllib.request
def key(path):
    try:
        lines = open(path, encoding="utf-8").read().splitlines()
    except OSError:
        return None
    found = [line.partition("=")[2].strip().strip('"') for line in lines if line.startswith("VLLM_API_KEY=")]
    return found[0] if found else None
headers = {"Content-Type": "application/json"}
token = key(asked["environment"])
if token:
    headers["Authorization"] = "Bearer " + token
data = None if asked["body"] is None else json.dumps(asked["body"]).encode()
request = urllib.request.Request(asked["url"], data=data, headers=headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(request, timeout=asked["timeout"]) as answer:
        status, text = answer.status, answer.read().decode(errors="replace")
except urllib.error.HTTPError as error:
    status, text = error.code, error.read().decode(errors="replace")
except OSError as error:
    status, text = 0, str(getattr(error, "reason", error))
json.dump({"status": status, "text": text}, sys.stdout)
"""


@dataclass(frozen=True)
class Answer:
    """`status` is HTTP's, or 0 when nobody answered; then `text` says why."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 200


@dataclass(frozen=True)
class Completion:
    """One choice of /v1/completions. `tokens` and `top` (token -> log-probability) are empty unless asked for."""

    text: str
    tokens: tuple[str, ...]
    top: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Endpoint:
    """One engine's HTTP side, as seen on `transport`'s host."""

    transport: Transport
    port: int
    environment: str
    python: str = "python3"

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 10.0) -> Answer:
        """GET, or POST with a body. Never raises for what the server does, only for the transport."""
        url = f"http://127.0.0.1:{self.port}{path}"
        asked = {"url": url, "body": body, "timeout": timeout, "environment": self.environment}
        script = f"import json\nasked = json.loads({json.dumps(json.dumps(asked))})\n{_CLIENT}"
        command = f"{quote(self.python)} -I -"
        result = self.transport.run(command, sudo=True, timeout=timeout + 30.0, stdin=script.encode())
        found = json.loads(result.stdout)
        return Answer(int(found["status"]), str(found["text"]))

    def counters(self) -> metrics.Counters:
        """A scrape of /metrics; raises GateError when it is not served."""
        answer = self.ask("/metrics")
        if not answer.ok:
            raise GateError(
                f"/metrics answers {answer.status or 'nothing'}: {answer.text[:200]}",
                where=self.where,
                remedy="see the service's journal: ddtree-deploy logs",
            )
        return metrics.parse(answer.text)

    def models(self) -> tuple[str, ...]:
        """The names that /v1/models lists; empty when it does not answer."""
        answer = self.ask("/v1/models")
        return tuple(str(model["id"]) for model in json.loads(answer.text)["data"]) if answer.ok else ()

    def complete(
        self,
        model: str,
        prompt: str,
        tokens: int,
        *,
        timeout: float,
        top: int = 0,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """A greedy completion; `top` asks for that many log-probabilities per token. GateError if there is none."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            **(extra or {}),
        }
        if top:
            body["logprobs"] = top
        answer = self.ask("/v1/completions", body, timeout=timeout)
        if not answer.ok:
            raise GateError(
                f"a completion was answered with {answer.status or 'nothing'}: {answer.text[:300]}",
                where=self.where,
                remedy="see the service's journal: ddtree-deploy logs",
            )
        choice = json.loads(answer.text)["choices"][0]
        chances = choice.get("logprobs") or {}
        return Completion(
            text=str(choice["text"]),
            tokens=tuple(chances.get("tokens") or ()),
            top=tuple(chances.get("top_logprobs") or ()),
        )

    @property
    def where(self) -> str:
        return f"{self.transport.name}, port {self.port}"
