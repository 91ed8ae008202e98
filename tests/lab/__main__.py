"""lab.sh: the staging box from the shell."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import asdict

from .box import Lab
from .machine import LabError, require_lab_machine
from .nsproxy import Faults
from .place import GUESTS, place
from .remains import remains


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab.sh", description="The staging box: kpro5, and CT129 inside it.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, what in {
        "check": "whether this machine can run a lab; exit 77 and one sentence if not",
        "build": "make the image unless it is cached",
        "up": "boot the containers; say so if they are up",
        "down": "leave nothing but the cached image and the keys",
        "reset": "down, then up: fresh root file systems, the same keys",
        "status": "what there is of the lab; exit 0 up, 3 down, 4 in between",
    }.items():
        verbs.add_parser(verb, help=what)
    execute = verbs.add_parser("exec", help="run a command in kpro5 or in one of its containers as root, without SSH")
    execute.add_argument("host", choices=("kpro5", *(f"ct{vmid}" for vmid in GUESTS)))
    execute.add_argument("command", nargs="+")
    fault = verbs.add_parser("fault", help="put the link to kpro5 at fault; without a word: mend it")
    fault.add_argument("faults", nargs="*", metavar="NAME=NUMBER", help=f"names: {', '.join(asdict(Faults()))}")
    return parser


def _faults(words: list[str]) -> Faults:
    raw = dict(word.partition("=")[::2] for word in words)
    none = asdict(Faults())
    if any(name not in none or not value.isdigit() for name, value in raw.items()):
        raise LabError(f"faults are {'=N '.join(none)}=N; got {' '.join(words)}")
    return Faults(**{name: type(none[name])(int(value)) for name, value in raw.items()})


def _status(lab: Lab) -> int:
    left = remains(lab.place)
    if not left:
        print("down")
        return 3
    if lab.is_up():
        print(f"up: 127.0.0.1:{lab.port()} leads to kpro5; ssh -F {lab.place.ssh_config} ct129")
        return 0
    print("half up (`down` clears it):", *left, sep="\n  ")
    return 4


def _run(lab: Lab, asked: argparse.Namespace) -> int:
    started = time.monotonic()

    match asked.verb:
        case "status":
            return _status(lab)
        case "exec":
            lab.port()
            return subprocess.run(lab.attach(asked.host, *asked.command), check=False).returncode
        case "check":
            require_lab_machine(lab.place.root)
            done = "this machine can run the lab"
        case "build":
            done = "image built" if lab.build() else "image is cached; nothing to build"
        case "down":
            done = "down" if lab.down() else "already down; nothing to do"
        case "fault":
            lab.set_faults(faults := _faults(asked.faults))
            done = str(faults)
        case verb:
            done = "up" if lab.up(afresh=verb == "reset") else "already up; nothing to do"
    print(f"{done} ({time.monotonic() - started:.1f} s)")
    return _status(lab) if asked.verb in ("up", "reset") else 0


def main() -> int:
    asked = _parser().parse_args()
    try:
        return _run(Lab(place()), asked)
    except LabError as wrong:
        print(f"lab: {wrong}", file=sys.stderr)
        return wrong.exit_code


if __name__ == "__main__":
    sys.exit(main())
