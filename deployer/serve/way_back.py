"""The way back, kept on the host: a script that restores what served before, for as long as a switch is under way.

Three may run it: the deployer, when the new service fails; the host, when the connection to the deployer ends before
the switch does (the deployer was killed, its machine went to sleep, the link is gone); and the host when it boots. It
is one systemd unit's, so that it runs once at a time. Whoever renames the script first decides: the host, which then goes
back, or the deployer, which then ends the switch.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from shlex import quote
from typing import BinaryIO

from deployer.errors import DeployError
from deployer.plan.layout import Layout
from deployer.transport.base import SILENCE, Transport
from deployer.transport.shell import CommandError

_RUNS = 900.0  # seconds for the script: a drain, the GPUs' memory, a start
_WATCHING = 10.0  # seconds until the host watches, or it is said that it does not
_GONE = 9  # the shell's answer when there is no way any more
_UNIT = """\
# Written by ddtree-deploy: brings back what served before a switch that nobody ended.
[Unit]
Description=Way back from an interrupted switch of {unit}
ConditionPathExists=|{script}
ConditionPathExists=|{begun}
RequiresMountsFor={script}
Before={unit}

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'test -e {begun} || mv -T {script} {begun} || exit 0; /bin/sh {begun} && rm {begun}'
TimeoutStartSec={seconds:.0f}

[Install]
WantedBy=multi-user.target
"""


@dataclass
class WayBack:
    """One switch's way back. The host goes it when this program's line ends or has been silent for `silence` seconds, and
    whatever it hears when `patience` seconds are over.
    """

    transport: Transport
    layout: Layout
    patience: float
    silence: float = SILENCE
    watched: bool = field(default=False, init=False)
    _line: BinaryIO | None = field(default=None, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def keep(self, script: str) -> bool:
        """Puts `script` in place, and from here on the host runs it when this program falls silent.

        Says whether the host watches; at boot it runs in any case.
        """
        layout = self.layout
        unit = _UNIT.format(unit=layout.unit, script=layout.way_back, begun=self._begun, seconds=_RUNS)
        self.transport.write(unit.encode(), layout.way_back_file, sudo=True)
        # A deployer that fell silent without an end of its line may still be waited for: not any more.
        earlier = f"systemctl stop {quote(self._watching + '*')}"
        enable = f"systemctl daemon-reload && systemctl enable -q {quote(layout.way_back_unit)}"
        self.transport.run(f"{earlier}; {enable}", sudo=True)
        self.transport.write(script.encode(), layout.way_back, mode=0o700, sudo=True)
        self.watched = self._watch()
        return self.watched

    def take(self) -> None:
        """Goes back, if there is a way: otherwise nothing happens. Returns when that is done, whoever began it."""
        # The script only queues the start: at boot it would wait for itself.
        queued = f'[ "$(systemctl show -P Job {quote(self.layout.unit)})" -gt 0 ] 2>/dev/null'
        command = (
            f"if test -e {quote(self.layout.way_back)} -o -e {quote(self._begun)}; "
            f"then systemctl start {quote(self.layout.way_back_unit)} && "
            f"for i in $(seq 100); do {queued} || break; sleep 0.1; done; fi"
        )
        self.transport.run(command, sudo=True, timeout=_RUNS + 60.0)

    def stands(self) -> bool:
        """Whether nobody has gone back yet."""
        return self.transport.run(f"test -e {quote(self.layout.way_back)}", sudo=True, check=False).ok

    def close(self, command: str = "true") -> bool:
        """From here on nobody goes back, and `command` is done. False, and it is not, when the host has gone back or is
        about to.
        """
        script = quote(self.layout.way_back)
        closing = f"mv -T {script} {script}.closed || exit {_GONE}; rm {script}.closed; {command}"
        result = self.transport.run(closing, sudo=True, check=False)
        if result.returncode not in (0, _GONE):
            raise CommandError(self.transport.name, result)
        return result.ok

    def end(self) -> None:
        """The switch is over; what is left of the way goes. On a broken line the host still goes it."""
        with suppress(DeployError):
            self.close()
        self.watched = False
        self._over.set()
        self._line = None

    @property
    def _begun(self) -> str:
        """The script's name while it runs: if that is cut short, the next boot runs it again."""
        return f"{self.layout.way_back}.begun"

    @property
    def _watching(self) -> str:
        """What the names of the units begin with that watch deployers."""
        return f"{self.layout.service}-watch-"

    def _watch(self) -> bool:
        """A unit of the host's reads from this program, and goes back at the end of that: systemd keeps it, not sshd."""
        source, sink = os.pipe()
        self._line = os.fdopen(sink, "wb", buffering=0)
        name = f"{self._watching}{uuid.uuid4().hex[:8]}"
        back = f"exec systemctl start {quote(self.layout.way_back_unit)}"
        # From the first word on: where a way carries only the end of its input, silence says nothing.
        listens = f'test "$(head -c 1)" && while test "$(timeout {self.silence:g} head -c 1)"; do :; done'
        waits = f"timeout {self.patience:.0f} /bin/sh -c {quote(listens)}; {back}"
        command = f"exec systemd-run --quiet --collect --pipe --unit={name} /bin/sh -c {quote(waits)}"
        self._over = threading.Event()
        holds = (command, os.fdopen(source, "rb", buffering=0))
        threading.Thread(target=self._hold, args=holds, daemon=True).start()
        threading.Thread(target=self._speak, args=(self._line, self._over), daemon=True).start()
        deadline = time.monotonic() + _WATCHING
        while time.monotonic() < deadline:
            if self.transport.run(f"systemctl is-active -q {name}", check=False).ok:
                return True
            time.sleep(0.1)
        return False

    def _speak(self, line: BinaryIO, over: threading.Event) -> None:
        """A word now and then, as long as this program runs and the line takes it; then the line ends.

        It ends here: closed from elsewhere, a word under way might go to whatever file got its number since.
        """
        with suppress(OSError, ValueError), line:  # broken, or closed meanwhile
            line.write(b".")
            while not over.wait(self.silence / 10):
                line.write(b".")

    def _hold(self, command: str, source: BinaryIO) -> None:
        with suppress(DeployError), source:
            self.transport.hold(command, source, sudo=True, stall=_RUNS)
