"""Runs one arm on the host: a unit of its own with the service's sandbox, and cell after cell while it is up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from deployer.bench.arms import Arm
from deployer.bench.client import TIMEOUT, client_command, watch_command, watched_command
from deployer.bench.measured import cards, measured
from deployer.bench.model import OWN, Cell, Conditions
from deployer.bench.place import Bench
from deployer.bench.prompts import MIXED, PromptSet
from deployer.errors import DeployError
from deployer.inventory.model import Inventory
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve import gate
from deployer.serve.endpoint import Endpoint
from deployer.serve.gate import Clock, Wanted
from deployer.serve.render import Engine
from deployer.serve.service import STOPS, Service
from deployer.transport.base import Transport

_SETTLE = 1.0  # the workers publish the tree's counters twice a second


@dataclass(frozen=True)
class Runner:
    """Everything an arm needs besides itself."""

    inventory: Inventory
    transport: Transport
    bench: Bench
    engine: Engine
    clock: Clock = field(default_factory=Clock)

    @contextmanager
    def up(self, arm: Arm, progress: Progress) -> Iterator[Callable[[Conditions, PromptSet], Cell]]:
        """Starts the arm's engine and proves it; yields what measures one cell; clears everything away again."""
        try:
            self.clear()  # an engine that an interrupted bench left would answer in this one's place
            self._put(arm)
            start = time.monotonic()
            service = self._service()
            service.start()
            gate.prove(service, self._wanted(arm), progress.say, self.clock)
            load_seconds = time.monotonic() - start
            yield lambda cell, prompts: self._cell(cell, prompts, load_seconds)
        except DeployError:
            with suppress(DeployError):
                for line in self._service().journal(15):
                    progress.say(line[:200])
            raise
        finally:
            # A second Ctrl-C waits: what a bench leaves holds the GPUs.
            with suppress(DeployError), held_back():
                self.clear()

    def left_behind(self) -> bool:
        """Whether an interrupted bench left its unit on the host."""
        return self._service().state().installed

    def _cell(self, cell: Conditions, prompts: PromptSet, load_seconds: float) -> Cell:
        self.transport.write(prompts.jsonl(cell.requests).encode(), self.bench.prompts, sudo=True)
        service = self._service()
        self._warm_up(service, cell, prompts)
        self.clock.sleep(_SETTLE)
        before = service.counters()
        self.transport.run(watch_command(self.bench), sudo=True)
        try:
            client = self._client(cell, prompts)
        finally:
            log = self.transport.run(watched_command(self.bench), sudo=True).stdout
        self.clock.sleep(_SETTLE)
        counted = service.counters().since(before)
        return Cell(conditions=cell, measured=measured(cell, client, counted, cards(log), load_seconds))

    def _warm_up(self, service: Service, cell: Conditions, prompts: PromptSet) -> None:
        """Batches of the cell's own size: kernels are tuned, and graphs replayed, by batch."""
        texts = prompts.prompts or MIXED
        batch = [texts[index % len(texts)] for index in range(cell.concurrency)]
        body: dict[str, Any] = {"model": service.model, "prompt": batch, "max_tokens": cell.output_tokens}
        if cell.temperature != OWN:
            body["temperature"] = float(cell.temperature)
        for _ in range(cell.warm_ups):
            answer = service.endpoint.ask("/v1/completions", body, timeout=self.inventory.serve.gate_timeout)
            if not answer.ok:
                raise DeployError(
                    f"a warm-up was answered with {answer.status or 'nothing'}: {answer.text[:300]}",
                    where=service.endpoint.where,
                    remedy="[bench] output_tokens and the prompts have to fit into max-model-len",
                )

    def _service(self) -> Service:
        endpoint = Endpoint(self.transport, self.bench.port, self.bench.environment, self.inventory.install.python)
        return Service(self.transport, self.bench.layout, self.inventory.serve.served_model_name, endpoint)

    def _wanted(self, arm: Arm) -> Wanted:
        serve = self.inventory.serve
        return Wanted(serve.served_model_name, serve.prompt, serve.expect, 1.0, arm.proof, serve.gate_timeout)

    def _put(self, arm: Arm) -> None:
        bench, user = self.bench, quote(self.inventory.user)
        dropins = quote(f"{bench.unit_file}.d")
        self.transport.run(
            f"umask 022; mkdir -p {quote(bench.folder)} {dropins} && "
            f"install -d -o {user} -g {user} -m 0755 {quote(bench.results)}",
            sudo=True,
        )
        contents = (
            (bench.unit_file, arm.files.text("unit"), 0o644),
            (f"{bench.unit_file}.d/10-build.conf", arm.files.text("dropin"), 0o644),
            (bench.config, arm.files.text("config"), 0o644),
            (bench.environment, arm.files.text("environment"), 0o600),
            (bench.client_environment, arm.client.reveal(), 0o600),
        )
        for path, text, mode in contents:
            self.transport.write(text.encode(), path, mode=mode, sudo=True)
        self.transport.run("systemctl daemon-reload", sudo=True)

    def _client(self, cell: Conditions, prompts: PromptSet) -> dict[str, Any]:
        vllm, result = f"{self.engine.venv}/bin/vllm", "cell.json"
        path = quote(f"{self.bench.results}/{result}")
        command = client_command(
            self.inventory, self.bench, vllm, self.engine.target, cell, prompts, result, self.engine.softer
        )
        ran = self.transport.run(f"rm -f {path}; {command}", sudo=True, check=False, timeout=TIMEOUT + 60.0)
        found = self.transport.run(f"cat {path}", sudo=True, check=False, timeout=300.0)
        # The client's exit code and output are not the measure: interpreted Triton complains at exit.
        if not found.ok:
            said = (ran.stderr.strip().splitlines() or ["no output"])[-1]
            raise DeployError(
                f"`vllm bench serve` made no result: {said[-300:]}",
                where=self.transport.name,
                remedy="look at the arm's last lines above; run the bench again",
            )
        parsed: dict[str, Any] = json.loads(found.stdout)
        return parsed

    def clear(self) -> None:
        """Stops what asks and what answers, whoever started them, and removes what they left."""
        self.transport.run(self.clearing, sudo=True, timeout=STOPS)

    @property
    def clearing(self) -> str:
        """The commands for that."""
        bench = self.bench
        units = " ".join(map(quote, (bench.client_unit, bench.gpu_unit, bench.layout.unit)))
        paths = (bench.unit_file, f"{bench.unit_file}.d", bench.folder, bench.layout.state_dir)
        return (
            f"systemctl stop {units} 2>/dev/null; rm -rf {' '.join(quote(path) for path in paths)}; "
            f"systemctl daemon-reload; systemctl reset-failed {units} 2>/dev/null; true"
        )
