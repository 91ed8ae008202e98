"""From facts to findings. Pure: the same facts and inventory always give the same findings."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.facts.finding import Finding, Level, judged
from deployer.facts.gather import Drafter, Facts
from deployer.facts.host import Host
from deployer.facts.judge_gpu import gpu_findings
from deployer.facts.target import Target
from deployer.inventory.model import Inventory

OLDEST_PYTHON = (3, 11)
OLDEST_GLIBC = (2, 28)  # torch's and vLLM's wheels are manylinux_2_28
INODES = 100_000  # a release holds about 60 000 files
SHM = 1 << 30  # bytes NCCL and the workers want for several GPUs


def judge(facts: Facts, inventory: Inventory) -> tuple[Finding, ...]:
    """Every finding, in the order an operator reads them: machine, room, GPUs, what runs, models."""
    return (
        *_machine(facts.host, inventory),
        *_room(facts, inventory),
        *gpu_findings(facts, inventory),
        *_running(facts, inventory),
        *_drafter(facts.drafter, inventory),
        *_target(facts.target, facts.drafter, inventory),
    )


def _machine(host: Host, inventory: Inventory) -> Iterator[Finding]:
    yield judged(host.arch == "x86_64", "system", f"{host.os}, {host.arch}, kernel {host.kernel}", "use an x86-64 host")
    python, name = ".".join(map(str, host.python)), inventory.install.python
    if not host.python:
        yield Finding(Level.FAIL, "python", f"{name} is not there", "apt-get install python3 python3-venv")
    else:
        recent = host.python >= OLDEST_PYTHON
        yield judged(recent, "python", f"{name} is {python}", "install Python 3.11 and name it in [install] python")
        yield judged(host.venv, "venv", "present" if host.venv else "no ensurepip", "apt-get install python3-venv")
    glibc = ".".join(map(str, host.glibc)) or "unknown"
    yield judged(host.glibc >= OLDEST_GLIBC, "glibc", glibc, "the wheels need glibc 2.28: use a newer system")
    seen = f"version {host.systemd}" if host.systemd_runs else "not running as init"
    yield judged(host.systemd_runs, "systemd", seen, "boot the container with systemd as its init")
    account = "root" if host.uid == 0 else f"uid {host.uid}, sudo {'without a password' if host.sudo else 'refused'}"
    line = "as root there: echo 'ACCOUNT ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ddtree-deploy"
    yield judged(host.is_root, "account", account, line)
    slower = "apt-get install rsync there; without it a slower channel is used"
    yield judged(host.rsync, "rsync", "present" if host.rsync else "absent", slower, otherwise=Level.WARN)
    if inventory.install.build == "cpu":
        remedy = "apt-get install libnuma1 there: without it the engine does not load"
        yield judged(host.numa, "libnuma", "present" if host.numa else "absent", remedy)


def _room(facts: Facts, inventory: Inventory) -> Iterator[Finding]:
    disk, needed = facts.root_disk, inventory.checks.min_free_gib
    # With a release in place the next one needs less: what is there is not fetched again.
    enough = disk.free >= needed * 2**30 or (facts.service.current is not None and disk.free >= needed * 2**30 / 2)
    yield judged(enough, "disk", str(disk), f"{needed:g} GiB are wanted: make room or set root elsewhere")
    if disk.inodes_free is not None:
        remedy = "a release has about 60 000 files: use a file system with more inodes"
        yield judged(disk.inodes_free >= INODES, "inodes", f"{disk.inodes_free} free", remedy)
    if inventory.checks.gpus > 1:
        remedy = "NCCL fails with a system error in a small /dev/shm: mount it with size=4g or more"
        yield judged(facts.shm.free >= SHM, "/dev/shm", f"{facts.shm.free / 2**30:.1f} GiB free", remedy)


def _running(facts: Facts, inventory: Inventory) -> Iterator[Finding]:
    state, holder = facts.service, facts.port_holder
    installed = f"release {state.current}" if state.current else "no release yet"
    yield Finding(Level.OK, "service", f"{inventory.service}: {state.active} ({state.sub}), {installed}")
    if state.restarts >= 3:
        remedy = f"see why: ddtree-deploy logs {inventory.name}"
        yield Finding(Level.WARN, "restarts", f"systemd restarted it {state.restarts} times", remedy)
    subject = f"port {inventory.serve.port}"
    if holder is None or holder.unit == f"{inventory.service}.service":
        yield Finding(Level.OK, subject, "ours" if holder else "free")
    elif holder.unit:
        yield Finding(
            Level.WARN, subject, f"held by {holder}", f"serve with --replace {holder.unit}, or change [serve] port"
        )
    else:
        yield Finding(Level.FAIL, subject, f"held by {holder}", "stop it, or change [serve] port")


def _drafter(drafter: Drafter, inventory: Inventory) -> Iterator[Finding]:
    if drafter.failure is not None:
        yield Finding(Level.FAIL, "drafter", drafter.failure.what, drafter.failure.remedy)
        return
    seen = f"{drafter.parameters / 1e6:.2f} M parameters, {drafter.size / 1e6:.1f} MB, fits {drafter.profile.name}"
    yield Finding(Level.OK, "drafter", seen)


def _target(target: Target | None, drafter: Drafter, inventory: Inventory) -> Iterator[Finding]:
    if target is None:
        where = inventory.target.push or f"{inventory.target.path} on the host"
        yield Finding(Level.FAIL, "target", f"no config.json in {where}", "put the model there or correct [target]")
        return
    config, shapes = drafter.profile.config, drafter.profile.shapes
    held = (
        ("num_hidden_layers", config.num_target_layers, target.layers),
        ("hidden_size", shapes.hidden, target.hidden),
        ("vocab_size", config.vocab_size, target.vocabulary),
    )
    wrong = [
        f"{key} is {found}, the drafter wants {wanted}" for key, wanted, found in held if found not in {None, wanted}
    ]
    seen = "; ".join(wrong) or f"{target.model_type}, {target.layers} layers, hidden {target.hidden}"
    yield judged(not wrong, "target", seen, "use the target that the drafter was trained for")
