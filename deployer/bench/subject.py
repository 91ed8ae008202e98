"""What a bench is of: models, versions and machine, read on the host."""

from __future__ import annotations

import json
from shlex import quote

from deployer.bench.model import Machine, Model, Subject
from deployer.bench.plan import Scene
from deployer.facts import host
from deployer.install.release import Folder
from deployer.inventory.model import Inventory
from deployer.plan.layout import Layout
from deployer.push.published import fingerprint
from deployer.transport.base import Transport

_PROCESSOR = "sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1"


def subject(inventory: Inventory, transport: Transport, here: Scene) -> Subject:
    """Reads it; changes nothing."""
    engine = here.runner.engine
    return Subject(
        host=inventory.name,
        build=inventory.install.build,
        release=here.release,
        versions=_versions(transport, Layout.of(inventory).release(here.release)),
        target=_model(transport, engine.target),
        drafter=_model(transport, engine.drafter),
        machine=_machine(inventory, transport, here),
    )


def _model(transport: Transport, folder: str) -> Model:
    return Model(path=folder, fingerprint=fingerprint(transport, folder))


def _versions(transport: Transport, release: str) -> dict[str, str]:
    manifest = json.loads(transport.run(f"cat {quote(Folder(release).manifest)}", sudo=True).stdout)
    versions = {name: str(manifest[name]) for name in ("vllm", "torch", "python") if manifest.get(name)}
    wheels = (name.split("-")[:2] for name in manifest.get("wheels", ()))
    return versions | {name: version for name, version in wheels if name == "ddtree_ext"}


def _machine(inventory: Inventory, transport: Transport, here: Scene) -> Machine:
    seen = host.read(transport, inventory.install.python)
    return Machine(
        os=seen.os,
        kernel=seen.kernel,
        processor=transport.run(_PROCESSOR).stdout.strip() or seen.arch,
        cpus=seen.cpus,
        memory_gib=round(seen.memory_kib / 2**20, 1),
        gpus=tuple(f"{card.name}, {card.memory_total} MiB" for card in here.gpus.cards),
        driver=here.gpus.driver,
    )
