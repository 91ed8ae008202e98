"""The commands that measure on the host: `vllm bench serve` for one cell, and nvidia-smi beside it. Pure."""

from __future__ import annotations

from shlex import quote

from deployer.bench.model import OWN, Conditions
from deployer.bench.place import Bench
from deployer.bench.prompts import PromptSet
from deployer.inventory.model import Inventory

TIMEOUT = 3600.0
_DATA_SEED = 0  # the same prompts in every round: what differs between rounds is to be noise alone
GPU_FIELDS = ("index", "memory.used", "power.draw", "clocks.sm", "temperature.gpu")


def client_command(
    inventory: Inventory,
    bench: Bench,
    vllm: str,
    target: str,
    cell: Conditions,
    prompts: PromptSet,
    result: str,
    softer: tuple[str, ...] = (),
) -> str:
    """`vllm bench serve` as the service's account, without network beyond loopback; its defaults would mislead.

    Unset it would not ask greedily, report p99 alone and ITL, which counts a step's tokens as one, and draw other
    prompts each time. It warms nothing up here: the counters around it are to hold counted requests alone.
    """
    percentiles = "--percentile-metrics ttft,tpot,e2el --metric-percentiles 10,50,90,99"
    body = "" if cell.temperature == "0" else f" --extra-body {quote(_json_seed(cell.seed))}"
    temperature = "" if cell.temperature == OWN else f" --temperature {cell.temperature}"
    inner = [
        "bench serve --backend openai --endpoint /v1/completions",
        f"--base-url http://127.0.0.1:{bench.port} --model {quote(inventory.serve.served_model_name)}",
        f"--tokenizer {quote(target)} {_prompts(bench, cell, prompts)} --num-prompts {cell.requests} --seed {_DATA_SEED}",
        f"--max-concurrency {cell.concurrency} --num-warmups 0{temperature}{body}",
        f"{percentiles} --ready-check-timeout-sec 0",
        f"--disable-tqdm --save-result --save-detailed --result-dir {quote(bench.results)}",
        f"--result-filename {quote(result)}",
    ]
    sandbox = [setting for setting in _sandbox(inventory, bench) if setting.partition("=")[0] not in softer]
    outer = [f"-p {quote(word)}" for word in sandbox]
    outer += [f"-E {quote(word)}" for word in _variables(inventory, bench)]
    return (
        f"systemd-run --quiet --wait --collect --pipe --unit={bench.client_unit} "
        f"{' '.join(outer)} {quote(vllm)} {' '.join(inner)}"
    )


def _json_seed(seed: int) -> str:
    return f'{{"seed": {seed}}}'


def _prompts(bench: Bench, cell: Conditions, prompts: PromptSet) -> str:
    if prompts.options:
        words = " ".join(f"--{quote(key)} {quote(value)}" for key, value in prompts.options)
        return f"{words} --output-len {cell.output_tokens}"
    template = "" if cell.chat_template else " --skip-chat-template"
    return (
        f"--dataset-name custom --dataset-path {quote(bench.prompts)} --disable-shuffle{template} "
        f"--custom-output-len {cell.output_tokens}"
    )


def _sandbox(inventory: Inventory, bench: Bench) -> list[str]:
    return [
        f"EnvironmentFile={bench.client_environment}",
        f"User={inventory.user}",
        f"WorkingDirectory={bench.folder}",
        f"ReadWritePaths={bench.results}",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "NoNewPrivileges=yes",
        "IPAddressDeny=any",
        "IPAddressAllow=localhost",
        f"RuntimeMaxSec={TIMEOUT:.0f}",
    ]


def _variables(inventory: Inventory, bench: Bench) -> list[str]:
    interpret = inventory.serve.environment.get("TRITON_INTERPRET")
    variables = [f"HOME={bench.results}", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"]
    return variables + ([f"TRITON_INTERPRET={interpret}"] if interpret else [])


def watch_command(bench: Bench) -> str:
    """Starts to write down once a second what the GPUs do; nothing where there is no nvidia-smi. It ends by itself."""
    query = f"nvidia-smi --query-gpu={','.join(GPU_FIELDS)} --format=csv,noheader,nounits -l 1"
    inner = quote(f"exec {query} >{quote(bench.gpu_log)} 2>/dev/null")
    return (
        f"rm -f {quote(bench.gpu_log)}; command -v nvidia-smi >/dev/null || exit 0; "
        f"systemd-run --quiet --collect --unit={bench.gpu_unit} -p RuntimeMaxSec={TIMEOUT:.0f} /bin/sh -c {inner}"
    )


def watched_command(bench: Bench) -> str:
    """Ends the watch and prints what it wrote."""
    return f"systemctl stop {quote(bench.gpu_unit)} 2>/dev/null; cat {quote(bench.gpu_log)} 2>/dev/null; true"
