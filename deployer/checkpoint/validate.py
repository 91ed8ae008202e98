"""Holds a checkpoint against a profile, tensor by tensor: what its header says, and where its bytes are zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deployer.checkpoint import content, remote_zeros, shapes, zeros
from deployer.checkpoint.header import Header, ends, read
from deployer.checkpoint.profiles import Profile
from deployer.errors import PreflightError

SHOWN = 8  # problems named in one message; the rest are counted


class Bytes(Protocol):
    """A checkpoint's bytes, wherever they lie."""

    def empty(self, spans: Sequence[tuple[int, int]]) -> Sequence[bool]:
        """Of each [begin, end) of the file whether it has bytes and all are zero."""
        ...

    def pages(self) -> zeros.Runs:
        """Reads every byte."""
        ...


@dataclass(frozen=True)
class Here:
    """Of a file on the laptop."""

    path: Path

    def empty(self, spans: Sequence[tuple[int, int]]) -> Sequence[bool]:
        return remote_zeros.empty(str(self.path), spans)

    def pages(self) -> zeros.Runs:
        return content.read(self.path).zeros


def validated(path: Path, profile: Profile) -> Header:
    """The header of the checkpoint at `path`, known to fit `profile`, none of its tensors ending in zeros.

    Raises PreflightError that names what does not.
    """
    header = read(path)
    _fit(str(path), header, profile, Here(path))
    return header


def examined(path: Path, profile: Profile) -> Header:
    """Like `validated`, and every byte was looked at: no region of zeros is left that a broken copy leaves."""
    header = read(path)
    examine(str(path), header, profile, Here(path))
    return header


def examine(where: str, header: Header, profile: Profile, held: Bytes) -> None:
    """Raises PreflightError that names what does not fit, or where it holds zeros; the same for any place of its bytes."""
    _fit(where, header, profile, held)
    refuse(where, profile, zeros.in_trained(header, held.pages()))


def _fit(where: str, header: Header, profile: Profile, held: Bytes) -> None:
    refuse(where, profile, (*disagreements(header, profile), *_zero_problem(header, held)))


def refuse(where: str, profile: Profile, found: tuple[str, ...]) -> None:
    """Raises PreflightError that lists the disagreements, if there are any."""
    if not found:
        return
    more = f"\n  ... and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    listed = "".join(f"\n  {problem}" for problem in found[:SHOWN])
    raise PreflightError(
        f"checkpoint does not fit profile {profile.name}:{listed}{more}",
        where=where,
        remedy="use the checkpoint that the profile describes, or a profile that describes this checkpoint",
    )


def disagreements(header: Header, profile: Profile) -> Iterator[str]:
    """What the header alone says against the profile: missing, unexpected, shape, dtype. One sentence each."""
    expected = shapes.tensors(profile.shapes)
    for name, shape in expected.items():
        tensor = header.tensors.get(name)
        if tensor is None:
            yield f"{name}: missing, expected {list(shape)}"
        elif tensor.shape != shape:
            yield f"{name}: expected shape {list(shape)}, found {list(tensor.shape)}"
        elif tensor.dtype != profile.dtype:
            yield f"{name}: expected dtype {profile.dtype}, found {tensor.dtype}"
    for name in header.tensors.keys() - expected.keys():
        yield f"{name}: unexpected, {list(header.tensors[name].shape)}"


def _zero_problem(header: Header, held: Bytes) -> Iterator[str]:
    last = ends(header)
    zero = [name for name, empty in zip(last, held.empty(list(last.values())), strict=True) if empty]
    if zero:
        count = f"{len(zero)} of {len(header.tensors)} tensors"
        yield f"{count} end in zeros (a copy that did not finish?): {', '.join(zero[:4])}"
