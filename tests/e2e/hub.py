"""The stand-in for the hub (tests/deployer) inside CT129, which has no way to any network: on its own loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.e2e.conftest import REPO, Deployer

PORT = 18080
REPOSITORY = "owner/tiny-target"
PLACE = "/var/tmp/hub-stand-in"
UNIT = "hub-stand-in"
# Files are held in their middle until PLACE/go is there.
PROGRAM = f"""
import sys, threading, time
from pathlib import Path
sys.path.insert(0, "{PLACE}")
from hub_stand_in import StandInHub
hub = StandInHub("{REPOSITORY}", Path("{PLACE}/model"), port={PORT}, slow=threading.Event())
with hub.serving():
    while True:
        time.sleep(0.1)
        if Path("{PLACE}/go").exists():
            hub.slow.set()
"""


def start(deployer: Deployer, model: Path) -> None:
    """Serves the files of `model` as a repository of the hub."""
    files = ["-C", str(REPO / "tests/deployer"), "hub_stand_in.py", "-C", str(model.parent), model.name]
    packed = subprocess.run(["tar", "cf", "-", *files], capture_output=True, check=True).stdout
    unpack = f"rm -rf {PLACE}; mkdir {PLACE} && cd {PLACE} && tar xf - && mv {model.name} model"
    for command, data in ((f"sudo sh -c '{unpack}'", packed), (f"sudo tee {PLACE}/hub.py", PROGRAM.encode())):
        subprocess.run(deployer.lab.ssh("ct129", command), input=data, check=True, stdout=subprocess.DEVNULL)
    deployer.ct129(f"systemd-run --quiet --collect --unit={UNIT} python3 {PLACE}/hub.py")


def go_on(deployer: Deployer) -> None:
    """Lets the files go to their ends."""
    deployer.ct129(f"touch {PLACE}/go")


def stop(deployer: Deployer) -> None:
    deployer.ct129(f"systemctl stop {UNIT}; rm -rf {PLACE}")


def inventory(deployer: Deployer, link: str) -> Deployer:
    """The same host, its target at `link` fetched from the hub."""
    text = deployer.inventory.read_text()
    before, rest = text.split("[target]\n")
    _, after = rest.split("\n\n", 1)
    target = f'[target]\npath = "{link}"\nhub = {{ repo = "{REPOSITORY}", endpoint = "http://127.0.0.1:{PORT}" }}\n\n'
    path = deployer.inventory.with_name("from-hub.toml")
    path.write_text(f"{before}{target}{after}")
    return Deployer(path, deployer.lab)
