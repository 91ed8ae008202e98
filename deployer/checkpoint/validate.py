"""Holds a checkpoint's header against a profile, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deployer.checkpoint import content, shapes, zeros
from deployer.checkpoint.header import Header, read, zero_filled
from deployer.checkpoint.profiles import Profile
from deployer.errors import PreflightError

SHOWN = 8  # problems named in one message; the rest are counted


def problems(header: Header, profile: Profile) -> tuple[str, ...]:
    """Every disagreement between file and profile: missing, unexpected, shape, dtype, zero-filled.

    Empty when they agree.
    """
    return (*disagreements(header, profile), *_zero_problem(header))


def validated(path: Path, profile: Profile) -> Header:
    """The header of the checkpoint at `path`, known to fit `profile`.

    Raises PreflightError that names what does not.
    """
    header = read(path)
    refuse(str(path), profile, problems(header, profile))
    return header


def examined(path: Path, profile: Profile) -> Header:
    """Like `validated`, and every byte was looked at: no region of zeros is left that a broken copy leaves."""
    header = validated(path, profile)
    refuse(str(path), profile, zeros.in_trained(header, content.read(path)))
    return header


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


def _zero_problem(header: Header) -> Iterator[str]:
    zero = zero_filled(header)
    if zero:
        count = f"{len(zero)} of {len(header.tensors)} tensors"
        yield f"{count} end in zeros (a copy that did not finish?): {', '.join(zero[:4])}"
