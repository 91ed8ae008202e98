"""Proves a release before use: `PROBE` runs on the host in the release's own Python, `judge` reads its findings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from shlex import quote
from typing import Any

from deployer.errors import InstallError
from deployer.install.release import VLLM_VERSION

# Prints one JSON line, last. It runs vLLM's own argument parser: what cannot load shows here, not at the first start.
PROBE = """
import contextlib, importlib, importlib.metadata as metadata, io, json, sys, traceback
found = {}
try:
    found["plugins"] = sorted(entry.name for entry in metadata.entry_points(group="vllm.general_plugins"))
    found["ext"] = metadata.version("ddtree-ext")
    import torch
    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda
    import vllm
    found["vllm"] = vllm.__version__
    importlib.import_module("ddtree_ext.plugin")
    from vllm.entrypoints.cli.main import main
    sys.argv = ["vllm", "serve", "--help"]
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            main()
        found["help"] = True
    except SystemExit as stop:
        found["help"] = not stop.code
except BaseException:
    found["error"] = traceback.format_exc(limit=-1).strip().splitlines()[-1]
print("\\n" + json.dumps(found))
"""


def scratch_command(python: str, argument: str, interpret: str | None = None) -> str:
    """Runs a script from stdin in a release's Python; home, caches and temporary files go with it: vLLM writes to all."""
    words = "HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1"
    words += f" TRITON_INTERPRET={quote(interpret)}" if interpret else ""
    return (
        'HOME=$(mktemp -d) && export HOME TMPDIR="$HOME" && cd / && trap \'rm -rf "$HOME"\' EXIT && '
        f"{words} {quote(python)} - {quote(argument) if argument else ''}"
    ).rstrip()


@dataclass(frozen=True)
class Engine:
    """What an installed release says about itself."""

    vllm: str
    torch: str
    cuda: str | None
    ext: str
    plugins: tuple[str, ...]


def judge(output: str, build: str, ext_version: str, where: str) -> Engine:
    """Holds the probe's output against what was installed. Raises InstallError with the first thing that is wrong."""
    found = _last_json(output, where)
    if error := found.get("error"):
        raise InstallError(f"The engine does not load: {error}", where=where, remedy=_hint(str(error)))
    engine = Engine(
        vllm=str(found["vllm"]),
        torch=str(found["torch"]),
        cuda=str(found["cuda"]) if found["cuda"] else None,
        ext=str(found["ext"]),
        plugins=tuple(str(name) for name in found["plugins"]),
    )
    wrong = _wrong(engine, build, ext_version, bool(found["help"]))
    if wrong:
        raise InstallError(wrong, where=where, remedy="look at the lock and the wheels of this release")
    return engine


def _wrong(engine: Engine, build: str, ext_version: str, helped: bool) -> str | None:
    if engine.vllm.partition("+")[0] != VLLM_VERSION:
        return f"vLLM {engine.vllm} was installed where {VLLM_VERSION} is pinned"
    if (build == "cuda") != (engine.cuda is not None):
        return f"torch {engine.torch} is built for {engine.cuda or 'the CPU'}, the inventory asks for {build}"
    if "ddtree" not in engine.plugins:
        return f"vLLM would not find the plugin ddtree; it finds {', '.join(engine.plugins) or 'none'}"
    if engine.ext != ext_version:
        return f"ddtree-ext {engine.ext} was installed where {ext_version} was built"
    return None if helped else "`vllm serve --help` fails"


def _last_json(output: str, where: str) -> dict[str, Any]:
    for line in reversed(output.strip().splitlines()):
        if line.startswith("{"):
            parsed: dict[str, Any] = json.loads(line)
            return parsed
    raise InstallError("The check of the new release printed nothing", where=where, remedy="run it again")


def _hint(error: str) -> str:
    if "libnuma" in error:
        return "install libnuma1 on the host (apt-get install libnuma1)"
    if ".so" in error and "cannot open shared object" in error:
        return "install the package that has this shared library on the host"
    return "the release stays marked incomplete; run install again after mending this"
