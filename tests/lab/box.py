"""The lab as one thing: build, up, down, reset, status, and the ways into it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from . import base
from .containers import KPRO5, Container, containers, dress_kpro5, guests, kpro5_config, mount_root
from .identity import ensure_keys, known_hosts, public_keys, ssh_config
from .machine import LabError, require_lab_machine, sh
from .nsproxy import Faults
from .place import CHECKOUT, Place
from .remains import proxies, remains, remove

_READY_SECONDS = 60.0


@dataclass(frozen=True)
class Lab:
    """One lab, at one place. Only what can be looked up on the machine counts as its state."""

    place: Place

    def build(self) -> bool:
        """Make the image unless it is cached. Returns whether it was made."""
        require_lab_machine(self.place.root)
        with self._locked():
            return base.build(self.place.base)

    def up(self, afresh: bool = False) -> bool:
        """Boot all containers and wait until those in kpro5 answer through it.

        Returns False, having changed nothing, if the lab was up and is not wanted afresh.
        """
        require_lab_machine(self.place.root)
        with self._locked():
            base.build(self.place.base)
            if not afresh and self.is_up():
                self._wait_until_ready()
                return False
            remove(self.place)
            try:
                self._boot()
                self._wait_until_ready()
            except BaseException:
                remove(self.place)
                raise
        return True

    def down(self) -> bool:
        """Leave nothing but the cached image and the keys, from any half state. Returns False if that was so."""
        with self._locked():
            if not remains(self.place):
                return False
            remove(self.place)
        return True

    def is_up(self) -> bool:
        """Whether kpro5 runs and the loopback port leads to it."""
        return self._kpro5_runs() and bool(proxies(self.place)) and self.place.state.exists()

    def port(self) -> int:
        """The loopback port that leads to kpro5's sshd. Raises LabError if the lab is down."""
        if not self.place.state.exists():
            raise LabError(f"lab {self.place.root} is down: bring it up first")
        return int(json.loads(self.place.state.read_text())["port"])

    def ssh(self, host: str, *command: str) -> list[str]:
        """The argv that runs a command on `kpro5` or one of its containers with the lab's own keys, checked strictly."""
        return ["ssh", "-F", str(self.place.ssh_config), host, *command]

    def attach(self, host: str, *argv: str) -> list[str]:
        """The argv that runs a command in a container as its root without SSH, for when SSH is what is broken."""
        enter = ["lxc-attach", "-P", str(self.place.lxc), "-n", self.place.namespace, "--clear-env", "--"]
        numbers = {guest.name: guest.vmid for guest in guests(self.place)}
        if host != KPRO5.name and host not in numbers:
            raise LabError(f"this lab has no {host}: LAB_GUESTS says which containers it has")
        inner = ["lxc-attach", "-n", numbers[host], "--clear-env", "--"] if host in numbers else []
        return [*self._in_network(), *enter, *inner, *argv]

    def set_faults(self, faults: Faults) -> None:
        """Put the link at fault, from the next chunk on; `Faults()` mends it."""
        self.port()
        faults.write(self.place.faults)

    def _in_network(self) -> list[str]:
        return ["nsenter", f"--net={self.place.netns}"]

    def _kpro5_runs(self) -> bool:
        if not (self.place.netns.exists() and self.place.lxc.exists()):
            return False
        info = sh(*self._in_network(), "lxc-info", "-P", self.place.lxc, "-n", self.place.namespace, "-sH", check=False)
        return info.stdout.strip() == "RUNNING"

    def _boot(self) -> None:
        ensure_keys(self.place)
        self._make_network()
        image = base.rootfs_of(self.place.base)
        for container in containers(self.place):
            mount_root(self.place, container, image)
        dress_kpro5(self.place)
        directory = self.place.lxc / self.place.namespace
        directory.mkdir(parents=True)
        (directory / "config").write_text(kpro5_config(self.place))
        log = ("--logfile", self.place.run / "kpro5.log", "--logpriority", "WARN")
        sh(*self._in_network(), "lxc-start", "-P", self.place.lxc, "-n", self.place.namespace, "-d", *log)
        port = self._start_proxy()
        self.place.known_hosts.write_text(known_hosts(port, public_keys(self.place)))
        self.place.ssh_config.write_text(ssh_config(self.place, port))
        self.place.state.write_text(json.dumps({"port": port, "namespace": self.place.namespace}) + "\n")

    def _make_network(self) -> None:
        """A namespace with a bridge that kpro5 is plugged into. Nothing of it shows in the machine's own namespace."""
        sh("ip", "netns", "add", self.place.namespace)
        for command in (
            "link set lo up",
            "link add br0 address 02:00:00:00:00:01 type bridge",
            "address add 10.129.0.1/24 dev br0",
            "link set br0 up",
        ):
            sh("ip", "-n", self.place.namespace, *command.split())
        self.place.run.mkdir(parents=True)
        script = self.place.run / "join-bridge"
        # LXC gives the device on this side of the pair as the fifth word.
        script.write_text('#!/bin/sh\nexec ip link set "$5" master br0 up\n')
        script.chmod(0o755)

    def _start_proxy(self) -> int:
        """Start the forwarder, which picks a free loopback port and says which."""
        module = [sys.executable, "-m", "lab.nsproxy"]
        words = [*module, str(self.place.netns), KPRO5.address, "22", str(self.place.faults)]
        environ = {**os.environ, "PYTHONPATH": str(CHECKOUT / "tests"), "PYTHONDONTWRITEBYTECODE": "1"}
        with (self.place.run / "proxy.log").open("w") as log:
            proxy = subprocess.Popen(
                words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert proxy.stdout is not None
        with proxy.stdout as said:
            line = said.readline()
        if not line:
            raise LabError(f"the loopback forwarder did not start: {(self.place.run / 'proxy.log').read_text()[-800:]}")
        return int(line)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        for guest in guests(self.place):
            self._wait_for(guest, deadline)

    def _wait_for(self, guest: Container, deadline: float) -> None:
        while (tried := sh(*self.ssh(guest.name, "true"), check=False)).returncode:
            if time.monotonic() > deadline:
                log = self.place.run / "kpro5.log"
                lxc = log.read_text()[-800:] if log.exists() else ""
                name = guest.name.upper()
                raise LabError(
                    f"{name} silent for {_READY_SECONDS:.0f} s; `reset` boots it afresh: {tried.stderr}{lxc}"
                )
            time.sleep(0.05)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One verb at a time in one place."""
        self.place.root.mkdir(parents=True, exist_ok=True)
        self.place.base.mkdir(parents=True, exist_ok=True)
        with (self.place.root / "lock").open("w") as own, (self.place.base / "lock").open("w") as shared:
            fcntl.flock(own, fcntl.LOCK_EX)
            # Labs that share an image boot one after the other: cheap, and no image is unpacked twice.
            fcntl.flock(shared, fcntl.LOCK_EX)
            yield
