"""The arms of a bench: the same engine, host and prompts, decoding in different ways. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote

from deployer.inventory.model import Inventory
from deployer.inventory.secret import Secret
from deployer.plan.layout import Layout
from deployer.serve import decoding
from deployer.serve.decoding import Decoding
from deployer.serve.render import Engine, Files, Place, environment_file, render

WARM_UP = 2
# An arm is a measurement: it must not come back by itself.
_ONCE = "\n[Service]\nRestart=no\n"


@dataclass(frozen=True)
class Bench:
    """Where a bench works on the host. Under /run: a reboot clears what an interrupted one left."""

    layout: Layout
    port: int

    @classmethod
    def of(cls, inventory: Inventory) -> Bench:
        """Beside the service: its own unit, port and state, the service's cache (compiled kernels)."""
        layout = Layout.of(inventory)
        return cls(replace(layout, service=f"{layout.service}-bench"), inventory.serve.port + 1)

    @property
    def folder(self) -> str:
        return f"/run/{self.layout.service}-work"

    @property
    def config(self) -> str:
        return f"{self.folder}/arm.yaml"

    @property
    def environment(self) -> str:
        return f"{self.folder}/arm.env"

    @property
    def client_environment(self) -> str:
        """The client's EnvironmentFile: root only, it may hold the API key."""
        return f"{self.folder}/client.env"

    @property
    def prompts(self) -> str:
        return f"{self.folder}/prompts.jsonl"

    @property
    def result(self) -> str:
        return f"{self.folder}/result/bench.json"

    @property
    def client_unit(self) -> str:
        return f"{self.layout.service}-client.service"

    @property
    def unit_file(self) -> str:
        return f"/run/systemd/system/{self.layout.unit}"


@dataclass(frozen=True)
class Arm:
    """One way to decode, ready to run: the files of its unit, the client's environment, and a digest of all that
    decides its numbers.
    """

    decoding: Decoding
    files: Files
    client: Secret
    digest: str

    @property
    def name(self) -> str:
        return self.decoding.kind


def arms(
    inventory: Inventory,
    bench: Bench,
    engine: Engine,
    prompts: str,
    *,
    nodes: tuple[str, ...],
    secrets: Mapping[str, Secret],
) -> tuple[Arm, ...]:
    """Autoregressive, the DFlash chain, and the tree unless the inventory switches it off."""
    kinds = [decoding.autoregressive(), decoding.chain(inventory)]
    if inventory.tree.enabled:
        kinds.append(decoding.tree(inventory))
    place = Place(bench.layout.service, Layout.of(inventory).service, bench.config, bench.environment, bench.port)
    key = {"OPENAI_API_KEY": secrets["VLLM_API_KEY"]} if "VLLM_API_KEY" in secrets else {}
    client = environment_file({}, key)
    made = []
    for how in kinds:
        files = render(inventory, place, replace(engine, decoding=how), nodes, secrets)
        files = replace(files, dropin=files.dropin + _ONCE)
        made.append(Arm(how, files, client, _digest(inventory, files, prompts)))
    return tuple(made)


def _digest(inventory: Inventory, files: Files, prompts: str) -> str:
    settings = inventory.bench
    parts = [files.digest, prompts, settings.num_prompts, settings.output_tokens, settings.concurrency, WARM_UP]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def client_command(inventory: Inventory, bench: Bench, vllm: str, target: str, softer: tuple[str, ...] = ()) -> str:
    """`vllm bench serve` as the service's account, without network beyond loopback; its defaults would mislead."""
    settings, folder, interpret = inventory.bench, bench.folder, inventory.serve.environment.get("TRITON_INTERPRET")
    sandbox = [
        f"EnvironmentFile={bench.client_environment}",
        *(f"User={inventory.user}", f"WorkingDirectory={folder}", f"ReadWritePaths={folder}/result"),
        *(
            "ProtectSystem=strict",
            "PrivateTmp=yes",
            "NoNewPrivileges=yes",
            "IPAddressDeny=any",
            "IPAddressAllow=localhost",
        ),
    ]
    sandbox = [setting for setting in sandbox if setting.partition("=")[0] not in softer]
    variables = [f"HOME={folder}/result", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"]
    variables += [f"TRITON_INTERPRET={interpret}"] if interpret else []
    outer = [f"-p {quote(word)}" for word in sandbox] + [f"-E {quote(word)}" for word in variables]
    inner = [
        "bench serve --backend openai --endpoint /v1/completions",
        f"--base-url http://127.0.0.1:{bench.port} --model {quote(inventory.serve.served_model_name)}",
        f"--tokenizer {quote(target)} --dataset-name custom --dataset-path {quote(bench.prompts)}",
        f"--skip-chat-template --disable-shuffle --num-prompts {settings.num_prompts}",
        f"--custom-output-len {settings.output_tokens} --max-concurrency {settings.concurrency} --temperature 0",
        "--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 10,50,90 --ready-check-timeout-sec 0",
        f"--disable-tqdm --save-result --result-dir {quote(folder)}/result --result-filename bench.json",
    ]
    run = f"systemd-run --quiet --wait --collect --pipe --unit={bench.client_unit}"
    return f"{run} {' '.join(outer)} {quote(vllm)} {' '.join(inner)}"
