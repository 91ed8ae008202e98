"""Runs one arm on the host: a unit of its own with the service's sandbox, a client, and counters before and after."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

from deployer.bench.arms import WARM_UP, Arm, Bench, client_command
from deployer.bench.result import ArmResult, measured
from deployer.errors import DeployError
from deployer.inventory.model import Inventory
from deployer.plan.signals import held_back
from deployer.plan.step import Progress
from deployer.serve import gate
from deployer.serve.endpoint import Endpoint
from deployer.serve.gate import Wanted
from deployer.serve.render import Engine
from deployer.serve.service import STOPS, Service
from deployer.transport.base import Transport

_CLIENT_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Runner:
    """Everything an arm needs besides itself."""

    inventory: Inventory
    transport: Transport
    bench: Bench
    engine: Engine
    prompts: tuple[str, ...]
    jsonl: str

    def run(self, arm: Arm, progress: Progress) -> ArmResult:
        """Starts the arm's engine, proves and warms it, lets the client ask, and clears everything away again."""
        try:
            self.clear()  # an engine that an interrupted bench left would answer in this one's place
            self._put(arm)
            service = self._service()
            service.start()
            gate.prove(service, self._wanted(arm), progress.say)
            for prompt in self.prompts[:WARM_UP]:
                service.complete(prompt, self.inventory.bench.output_tokens, self.inventory.serve.gate_timeout)
            before = service.counters()
            client = self._client(progress)
            return measured(arm.name, str(arm.decoding), arm.decoding.tokens, client, service.counters().since(before))
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

    def _service(self) -> Service:
        endpoint = Endpoint(self.transport, self.bench.port, self.bench.environment, self.inventory.install.python)
        return Service(self.transport, self.bench.layout, self.inventory.serve.served_model_name, endpoint)

    def _wanted(self, arm: Arm) -> Wanted:
        serve = self.inventory.serve
        return Wanted(serve.served_model_name, serve.prompt, serve.expect, 1.0, arm.decoding, serve.gate_timeout)

    def _put(self, arm: Arm) -> None:
        bench, user = self.bench, quote(self.inventory.user)
        folder, dropins = quote(bench.folder), quote(f"{bench.unit_file}.d")
        self.transport.run(
            f"umask 022; mkdir -p {folder} {dropins} && install -d -o {user} -g {user} -m 0755 {folder}/result",
            sudo=True,
        )
        contents = (
            (bench.unit_file, arm.files.text("unit"), 0o644),
            (f"{bench.unit_file}.d/10-build.conf", arm.files.text("dropin"), 0o644),
            (bench.config, arm.files.text("config"), 0o644),
            (bench.environment, arm.files.text("environment"), 0o600),
            (bench.client_environment, arm.client.reveal(), 0o600),
            (bench.prompts, self.jsonl, 0o644),
        )
        for path, text, mode in contents:
            self.transport.write(text.encode(), path, mode=mode, sudo=True)
        self.transport.run("systemctl daemon-reload", sudo=True)

    def _client(self, progress: Progress) -> dict[str, object]:
        progress.say(f"{self.inventory.bench.num_prompts} requests of {self.inventory.bench.output_tokens} tokens")
        vllm = f"{self.engine.venv}/bin/vllm"
        command = client_command(self.inventory, self.bench, vllm, self.engine.target, self.engine.softer)
        result = self.transport.run(command, sudo=True, check=False, timeout=_CLIENT_TIMEOUT)
        found = self.transport.run(f"cat {quote(self.bench.result)}", sudo=True, check=False)
        # The client's exit code and output are not the measure: interpreted Triton complains at exit.
        if not found.ok:
            said = (result.stderr.strip().splitlines() or ["no output"])[-1]
            raise DeployError(
                f"`vllm bench serve` made no result: {said[-300:]}",
                where=self.transport.name,
                remedy="look at the arm's last lines above; run the bench again",
            )
        parsed: dict[str, object] = json.loads(found.stdout)
        return parsed

    def clear(self) -> None:
        """Stops client and engine of an arm, whoever started them, and removes what they left."""
        self.transport.run(self.clearing, sudo=True, timeout=STOPS)

    @property
    def clearing(self) -> str:
        """The commands for that."""
        bench = self.bench
        units = f"{quote(bench.client_unit)} {quote(bench.layout.unit)}"
        paths = (bench.unit_file, f"{bench.unit_file}.d", bench.folder, bench.layout.state_dir)
        return (
            f"systemctl stop {units} 2>/dev/null; rm -rf {' '.join(quote(path) for path in paths)}; "
            f"systemctl daemon-reload; systemctl reset-failed {units} 2>/dev/null; true"
        )
