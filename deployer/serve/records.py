"""Deployments as the host remembers them: ROOT/state/deployments/<id>/ with the files, the release and who did it.

`active` points to the one that proved itself last; each folder's `previous` points to the one before it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from shlex import quote

from deployer.plan.layout import Layout
from deployer.plan.person import me
from deployer.serve.options import from_yaml
from deployer.serve.render import Files
from deployer.transport.base import Transport

PREPARED, SERVING = "prepared", "serving"
NEW, OLD = ".new", ".before"  # what is staged beside a file: the next one, and the one before


@dataclass(frozen=True)
class Record:
    """One deployment. `outcome` is prepared, serving, or why it failed; `replaced` a foreign unit that it put out;
    `softer` the settings of confinement that its host could not carry out.
    """

    id: str
    release: str
    files: str
    decoding: str
    by: str
    when: str
    outcome: str = PREPARED
    replaced: str | None = None
    softer: tuple[str, ...] = ()

    @classmethod
    def new(
        cls, release: str, files: Files, decoding: str, replaced: str | None, softer: tuple[str, ...] = ()
    ) -> Record:
        """A deployment that begins now, by whoever runs this program."""
        now = datetime.now(UTC)
        return cls(
            id=f"{now:%Y%m%dT%H%M%SZ}-{files.digest[:8]}",
            release=release,
            files=files.digest,
            decoding=decoding,
            by=me(),
            when=now.isoformat(timespec="seconds"),
            replaced=replaced,
            softer=softer,
        )

    @classmethod
    def parse(cls, text: str) -> Record | None:
        """None when the text is no record: its writer was killed in between."""
        try:
            data = json.loads(text)
            return cls(**{**data, "softer": tuple(data.get("softer", ()))})
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"{self.id} ({self.decoding}, release {self.release}, by {self.by})"


@dataclass(frozen=True)
class Installed:
    """One file of a deployment: its name in the record's folder, where it belongs, its mode."""

    name: str
    path: str
    mode: int


def installed(layout: Layout) -> tuple[Installed, ...]:
    """The four files of a deployment, in the order of Files."""
    return (
        Installed("unit", layout.unit_file, 0o644),
        Installed("dropin", f"{layout.unit_file}.d/10-build.conf", 0o644),
        Installed("config", layout.config, 0o644),
        Installed("environment", layout.environment, 0o600),
    )


@dataclass(frozen=True)
class Records:
    """The host's folder of deployments."""

    transport: Transport
    layout: Layout

    @property
    def folder(self) -> str:
        return f"{self.layout.state}/deployments"

    def path(self, identifier: str) -> str:
        """One deployment's folder."""
        return f"{self.folder}/{identifier}"

    def all(self) -> tuple[Record, ...]:
        """Every readable record, oldest first."""
        command = f"cat {quote(self.folder)}/*Z-*/record.json 2>/dev/null || true"
        lines = self.transport.run(command, sudo=True).stdout.splitlines()
        records = [record for line in lines if (record := Record.parse(line))]
        return tuple(sorted(records, key=lambda record: record.id))

    def active(self) -> Record | None:
        """The deployment that proved itself last."""
        return self._read(f"{self.folder}/active")

    def previous(self, of: Record) -> Record | None:
        """The one that was active before `of`."""
        return self._read(f"{self.path(of.id)}/previous")

    def _read(self, folder: str) -> Record | None:
        found = self.transport.run(f"cat {quote(folder)}/record.json 2>/dev/null || true", sudo=True)
        return Record.parse(found.stdout)

    def save(self, record: Record, files: Files, before: Record | None) -> None:
        """Writes a deployment's folder: its files, its release, and a way back to the one before it."""
        folder = quote(self.path(record.id))
        links = f"ln -sfn {quote(self.layout.release(record.release))} {folder}/release"
        if before is not None:
            links += f" && ln -sfn {quote(self.path(before.id))} {folder}/previous"
        self.transport.run(
            f"umask 077; mkdir -p {folder} && chmod 0755 {quote(self.layout.state)} && {links}", sudo=True
        )
        for file in installed(self.layout):
            path = f"{self.path(record.id)}/{file.name}"
            self.transport.write(files.text(file.name).encode(), path, mode=0o600, sudo=True)
        self.mark(record, record.outcome)

    def mark(self, record: Record, outcome: str) -> Record:
        """Writes how a deployment ended."""
        marked = replace(record, outcome=outcome)
        line = json.dumps(asdict(marked)) + "\n"
        self.transport.write(line.encode(), f"{self.path(record.id)}/record.json", mode=0o600, sudo=True)
        return marked

    def proved(self, record: Record) -> str:
        """This deployment serves and has proved it. Gives the command that makes it the active one: a rename."""
        self.mark(record, SERVING)
        link = quote(f"{self.folder}/active")
        self.transport.run(f"ln -sfn {quote(self.path(record.id))} {link}.new", sudo=True)
        return f"mv -Tf {link}.new {link}"

    def stage(self, record: Record, before: Record | None) -> None:
        """Copies a deployment's files beside where systemd and vLLM read them, and those of the one before as well:
        what follows are renames, which a full disk does not stop and nothing can cut in two.
        """
        copies = [_copies(self, record, NEW), *([_copies(self, before, OLD)] if before else [])]
        self.transport.run(f"umask 022; {' && '.join(copies)}", sudo=True)

    def put_in_place(self) -> None:
        """The staged deployment becomes the one that is read, and `current` points to its release."""
        self.transport.run(f"{self.renames(NEW)} && systemctl daemon-reload", sudo=True)

    def renames(self, suffix: str) -> str:
        """The commands that give the staged files their names: those that are still there, so it can be done twice."""
        paths = [*(file.path for file in installed(self.layout)), self.layout.current]
        return " && ".join(
            f"{{ test ! -L {staged} -a ! -e {staged} || mv -fT {staged} {quote(path)}; }}"
            for path in paths
            for staged in [quote(f"{path}{suffix}")]
        )

    def unstage(self) -> None:
        """Removes what was staged and not used."""
        self.transport.run(f"rm -f {self.staged}", sudo=True)

    @property
    def staged(self) -> str:
        """All staged names, as words of a command."""
        paths = [*(file.path for file in installed(self.layout)), self.layout.current]
        return " ".join(quote(f"{path}{suffix}") for path in paths for suffix in (NEW, OLD))

    def config(self, record: Record) -> str:
        """What vLLM read in a deployment; empty when the host has it no more."""
        return self.transport.run(f"cat {quote(self.path(record.id))}/config 2>/dev/null || true", sudo=True).stdout

    def address(self, record: Record) -> tuple[int, str]:
        """The port and the model name under which a deployment serves."""
        options = from_yaml(self.config(record))
        return int(options["port"]), str(options["served-model-name"][0])

    def take_away(self) -> None:
        """Removes the files from where they are read: as it was before the first deployment."""
        self.transport.run(self.absence, sudo=True)

    @property
    def absence(self) -> str:
        """The commands that remove them."""
        paths = " ".join(quote(file.path) for file in installed(self.layout))
        unit = quote(self.layout.unit)
        return (
            f"systemctl disable {unit} 2>/dev/null; rm -f {paths} {self.staged}; "
            f"rmdir {quote(self.layout.unit_file)}.d 2>/dev/null; "
            f"systemctl daemon-reload; systemctl reset-failed {unit} 2>/dev/null; true"
        )

    def in_place(self, files: Files) -> tuple[str, ...]:
        """Paths whose content on the host is not that of `files`: changed by hand, or never written."""
        texts = {file.path: files.text(file.name) for file in installed(self.layout)}
        expected = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
        paths = " ".join(quote(path) for path in expected)
        found = self.transport.run(f"sha256sum {paths} 2>/dev/null || true", sudo=True).stdout
        there = {line[66:].strip(): line[:64] for line in found.splitlines()}
        return tuple(path for path, digest in expected.items() if there.get(path) != digest)


def _copies(records: Records, record: Record, suffix: str) -> str:
    """The commands that stage one deployment's files and its `current`, on the disk when they end."""
    files = installed(records.layout)
    steps = [
        f"install -D -m {file.mode:04o} {quote(records.path(record.id))}/{file.name} {quote(file.path + suffix)}"
        for file in files
    ]
    release, current = quote(records.layout.release(record.release)), quote(records.layout.current + suffix)
    return " && ".join(
        [*steps, f"ln -sfn {release} {current}", f"sync {' '.join(quote(f.path + suffix) for f in files)}"]
    )
