"""A new inventory file as text, with a comment on everything that the next reader may want to change. Pure.

Where nothing is to be said beyond what the model says of a key, the comment is that (`$about_TABLE_KEY`).
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

import tomli_w

from deployer.inventory.model import Inventory
from deployer.inventory.tables import tables


@dataclass(frozen=True)
class Answers:
    """What `init` asks. `jump` is empty without a jump host, `target_push` when the target is on the host already."""

    name: str
    host: str
    jump: str
    drafter: str
    profile: str
    target: str
    target_push: str
    build: str
    gpus: int
    model: str
    port: int


TEXT = Template("""\
# One host, one service. Every key and its default: ddtree-deploy inventory show $bare
name = $name
description = ""
# groups = ["production"] # --group production then means every host whose file says so
root = "/opt/ddtree" # $about_root
service = "ddtree-vllm" # $about_service

[ssh]
# Ports, users and keys come from your ~/.ssh/config; user, port, identity_file here override it.
host = $host
$jump

# A container without sshd: [ssh] reaches its Proxmox host, and pct is the way into it.
# [pct]
# vmid = 129

[checks]
gpus = $gpus # what the host must have before anything is written to it; 0 is a host without GPUs
# gpu_model = "RTX A6000"
# gpu_memory_gib = 47
# min_driver = "580" # vLLM's wheels are built for CUDA 13
min_free_gib = $free

[drafter]
file = $drafter # on this machine; relative to this file. Or the host fetches it: hub = { repo = "owner/name" }
profile = $profile # $about_drafter_profile

[target]
path = $target # $about_target_path
$push
# hub = { repo = "Qwen/Qwen3.6-27B" } # or the host fetches it itself; gated: token = { env = "HF_TOKEN" }

[install]
build = $build
source = "index" # or "wheelhouse": wheels from a folder of this machine, for a host without an index
# wheelhouse = "wheels"
keep = 3 # $about_install_keep

[tree]
budget = 31 # $about_tree_budget, at most 63; by requests in a step: table = [[1, 2, 31], [3, 8, 15]]
# tuned = "$bare.tuned.toml" # $about_tree_tuned

[serve]
port = $port # on the host's loopback; `ddtree-deploy tunnel` is the way to it
# address = "10.0.0.21" # $about_serve_address
# allow = ["10.0.0.5"] # a router in front of several boxes: docs/fleet.md
served_model_name = $model # $about_serve_served_model_name
gate_timeout = 1800 # seconds; a cold start on two GPUs was seen to take 11 minutes
min_acceptance_length = 1.5 # $about_serve_min_acceptance_length
prompt = "The capital of France is" # $about_serve_prompt
expect = "Paris" # $about_serve_expect

# vLLM's own options, by their own names.
[serve.options]
no-enable-prefix-caching = true # required by trees on hybrid targets
# tensor-parallel-size = 2
# max-model-len = 32768
# gpu-memory-utilization = 0.90

# [serve.secrets] # the values stay on this machine and go to a file that only the host's root reads
# VLLM_API_KEY = { env = "DEPLOY_API_KEY" } # or { file = "~/.secrets/api-key" }

# [notify] # told of every change to this host, as JSON on its stdin
# command = ["/usr/local/bin/tell-the-team"]
""")


def text(answers: Answers) -> str:
    """The file."""
    jump = f"jump = {_toml(answers.jump)}" if answers.jump else '# jump = "bastion" # or several: "first,second"'
    push = f"push = {_toml(answers.target_push)}" if answers.target_push else '# push = "folder" # copied there by push'
    return TEXT.substitute(
        _meanings(),
        bare=answers.name,
        name=_toml(answers.name),
        host=_toml(answers.host),
        jump=jump,
        gpus=answers.gpus,
        free=40 if answers.build == "cuda" else 6,
        drafter=_toml(answers.drafter),
        profile=_toml(answers.profile),
        target=_toml(answers.target),
        push=push,
        build=_toml(answers.build),
        port=answers.port,
        model=_toml(answers.model),
    )


def _meanings() -> dict[str, str]:
    """What the model says of each key, by the name that it has in the text."""
    return {
        "_".join(("about", *filter(None, table.name.split(".")), key.name)): key.meaning
        for table in tables(Inventory)
        for key in table.keys
    }


def _toml(value: str) -> str:
    """A value with TOML's own quoting."""
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
