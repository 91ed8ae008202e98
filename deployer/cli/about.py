"""What each verb reads in the inventory, fills in its document and ends with: for its page (deployer.cli.pages).

Every call of a verb in tests/deployer is held against this (calling.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from deployer.cli.app import app
from deployer.cli.document import Document, Result
from deployer.errors import Exit
from deployer.fleet.inventory import Router
from deployer.inventory.model import Inventory, Section
from deployer.inventory.tables import tables

Tables = Mapping[type[Section], tuple[str, ...]]
"""Of a host's file, and of the files of routers; "" is the top of one."""

PARTS = tuple(
    part
    for part in Document.model_fields
    if part not in Result.model_fields and part not in ("host", "plan_only", "changed", "warnings")
)
"""The parts of a document that are null where a verb has nothing to say about them."""

_REACH = ("", "ssh", "pct")
_CHANGE = (*_REACH, "notify")
_ASKED = ("install", "serve")  # by which Python a service is asked, and at which port
_MODELS = ("drafter", "target")
_ENGINE = (*_MODELS, *_ASKED, "tree", "bench")  # a chain's length is the bench's
_TRAFFIC: Tables = {Router: (*_REACH, *_ASKED)}  # of the routers in front: told to send nothing meanwhile
_BOXES: Tables = {Inventory: ("", "serve")}  # of a router's group
_ALL: Tables = {Inventory: tuple(dict.fromkeys(table.first for table in tables(Inventory)))}

READS: Mapping[str, Tables] = {
    "check": {Inventory: (*_REACH, "checks", *_ENGINE)},
    "doctor": {Inventory: (*_REACH, "checks", *_ENGINE)},
    "push": {Inventory: (*_CHANGE, *_MODELS)},
    "install": {Inventory: (*_CHANGE, *_ASKED)},
    "serve": {Inventory: (*_CHANGE, *_ENGINE), **_TRAFFIC},
    "up": {**_ALL, **_TRAFFIC},
    "tune": {Inventory: (*_CHANGE, *_ENGINE)},
    "status": {Inventory: (*_REACH, *_ASKED)},
    "logs": {Inventory: _REACH},
    "smoke": {Inventory: (*_REACH, "drafter", *_ASKED, "tree", "bench")},
    "stop": {Inventory: (*_CHANGE, *_ASKED), **_TRAFFIC},
    "rollback": {Inventory: (*_CHANGE, *_ASKED), **_TRAFFIC},
    "uninstall": {Inventory: (*_CHANGE, *_ASKED), **_TRAFFIC},
    "gc": {Inventory: (*_CHANGE, *_MODELS)},
    "lock": {Inventory: _CHANGE},
    "history": {Inventory: _REACH},
    "tunnel": {Inventory: (*_REACH, "serve")},
    "init": {},
    "bench run": {Inventory: (*_CHANGE, *_ENGINE), **_TRAFFIC},
    "bench show": {},
    "bench compare": {},
    "inventory list": {Inventory: ("",)},
    "inventory show": _ALL,
    "inventory validate": _ALL,
    "router up": {Router: (*_CHANGE, *_ASKED), **_BOXES},
    "router status": {Router: (*_REACH, *_ASKED), **_BOXES},
    "router uninstall": {Router: (*_CHANGE, *_ASKED)},
}

FILLS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("check", "doctor"), ("findings",)),
    **dict.fromkeys(("push", "install", "serve", "stop", "rollback", "uninstall", "gc"), ("steps", "lines")),
    **dict.fromkeys(("router up", "router uninstall"), ("steps", "lines")),
    **dict.fromkeys(("logs", "smoke", "bench compare"), ("lines",)),
    **dict.fromkeys(("status", "tunnel", "router status", "inventory list", "inventory validate"), ("values",)),
    "up": ("findings", "steps", "lines", "bench", "sweep"),
    "tune": ("steps", "lines", "tune", "sweep"),
    "bench run": ("steps", "lines", "bench", "sweep"),
    "bench show": ("sweep",),
    "lock": ("steps", "lines", "locked_by"),
    "history": ("history",),
    "init": ("steps", "values", "inventory"),
    "inventory show": ("inventory",),
}

_ALWAYS = (Exit.OK, Exit.UNEXPECTED, Exit.USAGE, Exit.INTERRUPTED)
_OWN: Mapping[str, tuple[Exit, ...]] = {
    "init": (Exit.PREFLIGHT,),
    "install": (Exit.INSTALL,),
    "smoke": (Exit.GATE_FAILED,),
    "bench compare": (Exit.BENCH_REGRESSION,),
    **dict.fromkeys(("bench run", "tune"), (Exit.GATE_FAILED, Exit.BENCH_REGRESSION)),
    **dict.fromkeys(("serve", "rollback"), (Exit.GATE_FAILED, Exit.ROLLBACK_FAILED)),
    "router up": (Exit.INSTALL, Exit.GATE_FAILED, Exit.ROLLBACK_FAILED),
    "up": (Exit.INSTALL, Exit.GATE_FAILED, Exit.ROLLBACK_FAILED, Exit.BENCH_REGRESSION),
}


def codes(verb: str) -> tuple[Exit, ...]:
    """How it can end: what reaches a host can fail to, what changes one can find it locked."""
    read = {table for found in READS[verb].values() for table in found}
    reaching = (Exit.PREFLIGHT, Exit.TRANSFER) if "ssh" in read and not verb.startswith("inventory ") else ()
    changing = (Exit.LOCKED,) if "steps" in FILLS[verb] and reaching else ()
    return tuple(sorted({*_ALWAYS, *reaching, *changing, *_OWN.get(verb, ())}))


def verbs() -> dict[str, Any]:
    """Every verb as the command line has it, in the order of the help; those of a group have its name before theirs."""
    root: Any = typer.main.get_command(app)
    return {
        f"{name} {inner}".strip(): verb
        for name, command in root.commands.items()
        for inner, verb in getattr(command, "commands", {"": command}).items()
    }
