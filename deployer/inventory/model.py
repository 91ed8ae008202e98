"""What an inventory file may say. One TOML file is one host; unknown keys are refused, so that a typing error is an
error.

Paths on the laptop may be relative: to the folder of the inventory file. Paths on the host are absolute.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from deployer.inventory.network import Address, Network
from deployer.inventory.paths import HostPath, Identifier, LaptopPath, ProfileReference, SshWord
from deployer.inventory.secret import SecretSource
from deployer.inventory.tiers import Table, require_consistent
from deployer.inventory.values import Number, OptionValue, Program, Switch, Version, Whole, require_sayable

SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")
SECRET_OPTIONS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}  # of vLLM, and the variables that say the same


class Section(BaseModel):
    """Common ground of all sections: frozen, strict about unknown keys, and every number is finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Ssh(Section):
    """How the host is reached. What is left out comes from the user's OpenSSH config (`ssh -G`)."""

    host: SshWord = Field(description="a name of ~/.ssh/config, or an address")
    user: SshWord | None = Field(default=None, description="root, or an account that may use `sudo -n`")
    port: Whole | None = Field(default=None, ge=1, le=65535, description="of its sshd")
    jump: SshWord | None = Field(default=None, description="ProxyJump: one or more [user@]host[:port], comma-separated")
    identity_file: LaptopPath | None = Field(default=None, description="the private key")
    config_file: LaptopPath | None = Field(default=None, description="an OpenSSH config file in place of ~/.ssh/config")
    known_hosts_file: LaptopPath | None = Field(default=None, description="in place of ~/.ssh/known_hosts")
    connect_timeout: Number = Field(default=15.0, gt=0, description="seconds for each hop to answer")


class Pct(Section):
    """The box is a container of the Proxmox host that [ssh] reaches: `pct` is the way into it, no sshd is needed there."""

    vmid: Whole = Field(ge=100, le=999_999_999, description="the container's number")
    stage: HostPath = Field(
        default="/var/lib/ddtree-deploy", description="folder on the Proxmox host for files on their way in"
    )


class Checks(Section):
    """What the host must have before anything is written to it."""

    gpus: Whole = Field(default=0, ge=0, description="number of GPUs; 0 means a CPU host")
    gpu_model: str | None = Field(default=None, description="a part of the name that nvidia-smi prints")
    gpu_memory_gib: Number | None = Field(default=None, gt=0, description="per GPU")
    min_driver: Version | None = Field(default=None, description="NVIDIA driver version, e.g. 580")
    min_free_gib: Number = Field(default=5.0, ge=0, description="on the file system of `root`")


class Hub(Section):
    """A model on the Hugging Face Hub, or on a mirror of it, that the host fetches itself."""

    repo: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$", description="owner/model")
    revision: str = Field(
        default="main",
        pattern=r"^[A-Za-z0-9][\w./-]*$",
        description="a commit; or a branch or tag, which stays at the commit that it is at when it is first fetched",
    )
    endpoint: str = Field(
        default="https://huggingface.co", pattern=r"^https?://[\w.:-]+(/[\w./-]+)?$", description="the hub or a mirror"
    )
    token: SecretSource | None = Field(
        default=None,
        description="for a gated or private model; only the laptop has it: { env = NAME } or { file = PATH }",
    )

    @model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Self:
        if self.token and not re.match(r"https://|http://(127\.0\.0\.1|localhost)(:|/|$)", self.endpoint):
            raise ValueError(f"a token is not sent to {self.endpoint}: without https everybody on the way reads it")
        return self


class Drafter(Section):
    """The checkpoint: say one of `file` and `hub`."""

    file: LaptopPath | None = Field(default=None, description="one bare .safetensors file, on the laptop")
    hub: Hub | None = Field(default=None, description="the model whose model.safetensors the host fetches itself")
    profile: ProfileReference = Field(
        description="the part of config.json that no header says: a bundled profile's name, or a TOML file's path"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.file is None) == (self.hub is None):
            raise ValueError("say exactly one of file and hub: the checkpoint on the laptop, or the model on the hub")
        return self


class Target(Section):
    """The model that verifies. Without `push` and `hub` it is on the host already."""

    path: HostPath = Field(description="its folder on the host")
    push: LaptopPath | None = Field(default=None, description="a folder on the laptop that is copied there")
    hub: Hub | None = Field(
        default=None, description="the model that the host fetches itself; `path` is then a link to it"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.push and self.hub:
            raise ValueError("say either push or hub: the folder of the laptop, or the model on the hub")
        return self


class Install(Section):
    """The engine: which build, and where its wheels come from."""

    build: Literal["cpu", "cuda"] = Field(description="of vLLM and torch")
    source: Literal["index", "wheelhouse"] = Field(
        default="index", description="the index that the host's pip knows, or wheels that the laptop has"
    )
    wheelhouse: LaptopPath | None = Field(default=None, description="folder of wheels on the laptop")
    local_packages: tuple[LaptopPath, ...] = Field(
        default=(), description="source folders built into wheels on the laptop"
    )
    python: Program = Field(default="python3", description="the host's Python that releases are made with")
    keep: Whole = Field(
        default=3, ge=1, description="the newest releases that stay for rollback; those in use stay too"
    )


class TreeOptions(Section):
    """ddtree_ext's own options. The engine checks them again when it starts."""

    topk: Whole | None = Field(
        default=None, ge=1, le=63, description="ranks kept per drafted position; 1 grows the spine alone"
    )


class Tree(Section):
    """What goes to ddtree_ext."""

    enabled: Switch = Field(default=True, description="false serves the plain DFlash chain")
    budget: Whole = Field(default=31, ge=1, le=63, description="nodes of a tree beside its root")
    table: Table = Field(
        default=(),
        description="nodes by the number of requests in a step: first and last number, nodes; the largest is `budget`",
    )
    tuned: LaptopPath | None = Field(
        default=None,
        description="what `tune` wrote, in place of `budget` and `table`: budgets by batch size, or no tree at all",
    )
    options: TreeOptions = Field(default_factory=TreeOptions, description="ddtree_ext's own, by their names")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.table and self.tuned:
            raise ValueError("table and tuned exclude each other: what was measured takes the table's place")
        require_consistent(self.table, self.budget, "budget")
        if self.table and (largest := max(nodes for *_, nodes in self.table)) != self.budget:
            raise ValueError(f"the largest of table has to be budget: it is {largest}, and budget is {self.budget}")
        return self


class Serve(Section):
    """The service, and how it has to prove itself."""

    port: Whole = Field(default=8000, ge=1, le=65535, description="where it listens on the host")
    address: Address | None = Field(
        default=None, description="the host's own, for those in `allow`; left out: the service is on loopback only"
    )
    allow: tuple[Network, ...] = Field(
        default=(), description="addresses or networks that may connect to `address`: a router's, say; nobody else may"
    )
    served_model_name: str = Field(description="what clients ask for")
    options: dict[str, OptionValue] = Field(
        default_factory=dict, description="vLLM's own, passed through by their names; its parser checks them"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="variables of the service, as they are")
    secrets: dict[str, SecretSource] = Field(
        default_factory=dict,
        description="variables whose values only the laptop has, e.g. VLLM_API_KEY = { env = NAME } or { file = PATH }",
    )
    gate_timeout: Number = Field(default=1200.0, gt=0, description="seconds until the service must have proved itself")
    min_acceptance_length: Number = Field(
        default=1.5, ge=1.0, description="below, the gate fails: a wrong layer or cache still serves right text, at 1.3"
    )
    prompt: str = Field(default="The capital of France is", description="what the gate has completed")
    expect: str | None = Field(
        default=None,
        description="text that the completion of `prompt` must contain, at temperature 0; `smoke` asks for one",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, value in self.environment.items():
            if value.startswith("$") or SECRET_NAME.search(name):
                raise ValueError(
                    f"{name} does not belong into environment: an inventory is no place for secrets; "
                    f'use [serve.secrets] {name} = {{ env = "NAME" }} or {{ file = "PATH" }}'
                )
        require_sayable(self.options)
        for given in self.options:
            name = given.lstrip("-").replace("_", "-")
            if variable := SECRET_OPTIONS.get(name):
                raise ValueError(
                    f"{name} does not belong into options: an inventory is no place for secrets; "
                    f'use [serve.secrets] {variable} = {{ env = "NAME" }} or {{ file = "PATH" }}'
                )
        if (self.address is None) != (not self.allow):
            raise ValueError("address and allow belong together: where the service is, and who may connect to it")
        if self.address and "host" in self.options:
            raise ValueError("options.host and address exclude each other: leave options.host out")
        if both := self.environment.keys() & self.secrets.keys():
            raise ValueError(f"{', '.join(sorted(both))} is in both environment and secrets")
        return self


def _as_list(value: object) -> object:
    return [value] if isinstance(value, int) else value


class Bench(Section):
    """What `bench` runs on the host: its arms, its prompts."""

    prompts: LaptopPath | None = Field(default=None, description='JSONL with {"prompt": ...} lines, on the laptop')
    num_prompts: Whole = Field(
        default=16, ge=1, description="requests of a measurement; more where concurrency takes them"
    )
    output_tokens: Whole = Field(default=64, ge=1, description="of each answer")
    arms: tuple[str, ...] = Field(
        default=(), description="ar, mtp[:K], chain[:K], tree[:B]; if left out: ar, chain and tree"
    )
    sets: tuple[str, ...] = Field(
        default=(),
        description="mixed, code, maths, chat, extraction, long, a .jsonl file, or vllm:NAME; `prompts` if left out",
    )
    concurrency: Annotated[tuple[Annotated[Whole, Field(ge=1)], ...], BeforeValidator(_as_list)] = Field(
        default=(1,), min_length=1, description="requests at a time: a number or a list of them"
    )
    temperature: tuple[str, ...] = Field(
        default=("0",), min_length=1, description='numbers, or "own": the model\'s own sampling defaults'
    )
    rounds: Whole = Field(
        default=1, ge=1, description="how often everything is measured; from 3 on noise can be judged"
    )
    chain_tokens: Whole | None = Field(
        default=None,
        ge=1,
        description="K of the DFlash chain, also of one that is served; the drafter's width if left out",
    )


class Notify(Section):
    """Who is told of every change: a command on the laptop, which reads the event as JSON from its stdin."""

    command: tuple[str, ...] = Field(default=(), description="program and arguments; run without a shell")
    timeout: Number = Field(default=10.0, gt=0, description="seconds")


class Inventory(Section):
    """One host."""

    name: SshWord = Field(description="how reports and notifications call it")
    description: str = Field(default="", description="what `inventory list` shows beside it")
    groups: tuple[Identifier, ...] = Field(default=(), description="names under which --group finds it")
    root: HostPath = Field(
        default="/opt/ddtree", description="absolute folder on the host for releases, models and state"
    )
    service: Identifier = Field(default="ddtree-vllm", description="the systemd unit's name, without .service")
    user: Identifier = Field(default="ddtree", description="the account the service runs as; created if absent")
    ssh: Ssh
    pct: Pct | None = None
    checks: Checks = Checks()
    drafter: Drafter
    target: Target
    install: Install
    tree: Tree = Tree()
    serve: Serve
    bench: Bench = Bench()
    notify: Notify = Notify()
