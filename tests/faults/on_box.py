"""Runs inside CT129, as root: what serves there, and what is half done under a final name. Standard library only.

The caller appends a call of main() to this text; the answer is one JSON document.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path("/opt/ddtree")
UNIT = "ddtree-vllm.service"
PROMPT = "who keeps the lantern?"
DRAFTS, TREES = "vllm:spec_decode_num_drafts_total", "vllm:ddtree_trees_total"


def output(*words: str, cwd: Path | None = None) -> str:
    """What a command prints, whatever its exit code."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def show(*names: str) -> dict[str, str]:
    """Properties of the unit."""
    said = output("systemctl", "show", UNIT, "-p", ",".join(names))
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


def ask(path: str, body: dict[str, Any] | None = None) -> str:
    """GET, or POST with a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:8000{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def counter(name: str) -> float:
    lines = [line for line in ask("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def serving() -> dict[str, Any]:
    """Which process answers, under which name, what, and whether it speculates by trees, by a chain or not at all."""
    unit = show("ActiveState", "InvocationID")
    found: dict[str, Any] = {"active": unit["ActiveState"], "invocation": unit["InvocationID"], "model": None}
    try:
        model = json.loads(ask("/v1/models"))["data"][0]["id"]
        before = {name: counter(name) for name in (DRAFTS, TREES)}
        body = {"model": model, "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
        text = json.loads(ask("/v1/completions", body))["choices"][0]["text"]
        for _ in range(12):  # the workers publish twice a second
            rose = [name for name in (TREES, DRAFTS) if counter(name) > before[name]]
            if TREES in rose:
                break
            time.sleep(0.25)
    except (OSError, ValueError, LookupError):
        return found
    decoding = "tree" if TREES in rose else "chain" if rose else "plain"
    return {**found, "model": model, "text": text, "decoding": decoding}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def half_done() -> list[str]:
    """What has a final name and is not what the name says. The thorough look at releases costs seconds."""
    return [*_store(), *_models(), *_wheels(), *_releases(), *_results(), *_deployments()]


def _store() -> list[str]:
    files = [path for path in (ROOT / "models/store").glob("*/*") if path.suffix != ".part"]
    return [f"{path} is not its name's content" for path in files if sha256(path) != path.parent.name]


def _models() -> list[str]:
    wrong = []
    for path in (ROOT / "models").iterdir() if (ROOT / "models").is_dir() else []:
        if path.is_symlink():
            wrong += [] if path.is_dir() else [f"{path} points nowhere"]
        elif path.name != "store" and path.suffix != ".part":
            said = output("sha256sum", "-c", "--quiet", ".sha256sums", cwd=path)
            wrong += [f"{path}: {said}"] if said else []
    return wrong


def _wheels() -> list[str]:
    """A wheel that was cut off has lost its end, and with it the list of what is in it."""
    import zipfile

    return [f"{path} is cut off" for path in (ROOT / "wheels").glob("*.whl") if not zipfile.is_zipfile(path)]


def _releases() -> list[str]:
    wrong = []
    for release in (ROOT / "releases").glob("*"):
        if (release / "INCOMPLETE").exists():
            continue
        pins = [line for name in ("lock.txt", "local.txt") for line in (release / name).read_text().splitlines()]
        site = release / "venv/lib/python3.11/site-packages"
        installed = [path for path in site.glob("*.dist-info") if not path.name.startswith(("pip-", "setuptools-"))]
        wanted = [line for line in pins if "==" in line and not line.startswith(("pip=", "setuptools=", "#"))]
        if len(installed) != len(wanted):
            wrong.append(f"{release} counts as complete with {len(installed)} of {len(wanted)} packages")
        for info in installed:
            for name, _, size in csv.reader((info / "RECORD").read_text().splitlines()):
                file = site / name
                if size and (not file.exists() or (file.suffix == ".so" and file.stat().st_size != int(size))):
                    wrong.append(f"{release} counts as complete without {name}")
    current = ROOT / "current"
    if not (current / "release.json").exists() or (current / "INCOMPLETE").exists():
        wrong.append(f"current points to {os.path.realpath(current)}, which is not complete")
    return wrong


def _results() -> list[str]:
    wrong = []
    for path in (ROOT / "state/bench").glob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            wrong.append(f"{path} is no result")
    return wrong


def _deployments() -> list[str]:
    """The deployment called active has proved itself; every file that is in place is wholly some deployment's."""
    folder, wrong = ROOT / "state/deployments", []
    active = json.loads((folder / "active/record.json").read_text())
    if active["outcome"] != "serving":
        wrong.append(f"the active deployment's outcome is {active['outcome']}")
    places = {"unit": f"/etc/systemd/system/{UNIT}", "dropin": f"/etc/systemd/system/{UNIT}.d/10-build.conf"}
    places |= {"config": "/etc/ddtree/ddtree-vllm.yaml", "environment": "/etc/ddtree/ddtree-vllm.env"}
    for name, place in places.items():
        known = {sha256(path) for path in folder.glob(f"*Z-*/{name}")}
        if not os.path.exists(place) or sha256(Path(place)) not in known:
            wrong.append(f"{place} is no deployment's")
    return wrong


def left_over() -> list[str]:
    """What only something unfinished has: to be seen after a fault, not after the deployment that mended it."""
    names = ("*.part", "*.new", "*.before", "INCOMPLETE", "way-back.sh*")
    folders = (ROOT, Path("/etc/ddtree"), Path("/etc/systemd/system"))
    found = [path for folder in folders for name in names for path in folder.rglob(name) if "venv" not in path.parts]
    lock = Path("/run/lock/ddtree-vllm.deploy")
    units = output("systemctl", "list-units", "--all", "--no-legend", "--plain", "ddtree-vllm-*").splitlines()
    running = [unit for unit in units if " inactive " not in unit]
    return [*map(str, found), *([f"lock: {(lock / 'owner').read_text()}"] if lock.exists() else []), *running]


def main(verb: str, *words: str) -> None:
    verbs = {function.__name__: function for function in (serving, half_done, left_over)}
    print(json.dumps(verbs[verb](*words)))
