"""A safetensors file's header, read by hand: an 8-byte little-endian length, then JSON of names, dtypes, shapes and
offsets.

Format: https://huggingface.co/docs/safetensors (section "Format"). The laptop needs no torch for this.
"""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.errors import PreflightError

MAX_HEADER = 100_000_000  # bytes; the reference implementation's own bound
SAMPLE = 4096  # bytes looked at per tensor when searching for ends of zeros
WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
WIDTHS |= {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1}
# What people mistake for a checkpoint, by its first bytes.
IMPOSTORS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "fetch it: git lfs pull"),
    (b"<", "an HTML or XML page, probably a login or error page", "download it again, logged in"),
    (b"{", "JSON text, probably an index or an error message", "give the .safetensors file itself"),
    (b"GGUF", "a GGUF file", "give the original .safetensors file"),
    (b"PK\x03\x04", "a zip or PyTorch .bin file", "give the original .safetensors file"),
    (b"\x80\x02", "a pickle", "give the original .safetensors file"),
)


@dataclass(frozen=True)
class Tensor:
    """One tensor: safetensors dtype name, shape, and [begin, end) in bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """Everything a safetensors file says about itself.

    `data_start` is where the tensors' bytes begin, `size` the file's length.
    """

    path: Path
    size: int
    data_start: int
    tensors: dict[str, Tensor]

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())


def read(path: Path) -> Header:
    """Reads and checks the header: lengths, offsets without gaps, file length.

    Raises PreflightError naming the defect.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # to open a pipe waits for somebody who writes to it
            raise _defect(path, "is not a regular file", "give the .safetensors file itself")
        size = status.st_size
        with path.open("rb") as file:
            start = file.read(64)
            length = int.from_bytes(start[:8], "little")
            file.seek(8)
            text = file.read(length) if length <= MAX_HEADER else b""
    except OSError as error:
        raise _defect(path, f"cannot be read: {error.strerror}", "check the path and its permissions") from error
    return made(path, size, start, text)


def made(path: Path, size: int, start: bytes, text: bytes) -> Header:
    """The header of a file of `size` bytes that begins with `start`, its JSON being `text`; `path` is for messages.

    Raises PreflightError naming the defect.
    """
    refuse_impostor(path, start)
    length = _header_length(path, start, size)
    tensors = _parse(path, text)
    _check_offsets(path, tensors, size - 8 - length)
    return Header(path=path, size=size, data_start=8 + length, tensors=tensors)


def ends(header: Header) -> dict[str, tuple[int, int]]:
    """Of each tensor the [begin, end) of its last bytes in the file, SAMPLE at most: zeros there are what a crashed copy
    or a preallocating downloader leaves.
    """
    start = header.data_start
    return {name: (start + max(t.begin, t.end - SAMPLE), start + t.end) for name, t in header.tensors.items()}


def _defect(path: Path, what: str, remedy: str) -> PreflightError:
    return PreflightError(f"checkpoint {path.name} {what}", where=str(path), remedy=remedy)


def refuse_impostor(path: Path, start: bytes, *, text: bool = False) -> None:
    """Raises PreflightError when a file's first bytes are those of something else; `text` is for files of JSON."""
    if not start:
        raise _defect(path, "is empty", "copy or download it again")
    if not any(start):
        raise _defect(path, "starts with zeros: it was preallocated, not written", "copy or download it again")
    if not text and _begins_with_header(start):  # the length of a header may happen to be another format's magic
        return
    for magic, what, remedy in IMPOSTORS:
        if start.startswith(magic) and not (text and magic == b"{"):
            raise _defect(path, f"is {what}", remedy)


def _begins_with_header(start: bytes) -> bool:
    return 2 <= int.from_bytes(start[:8], "little") <= MAX_HEADER and start[8:9] == b"{"


def _header_length(path: Path, start: bytes, size: int) -> int:
    if len(start) < 8:
        raise _defect(path, f"is {size} bytes long, too short for any checkpoint", "copy or download it again")
    length = int.from_bytes(start[:8], "little")
    if not _begins_with_header(start):
        raise _defect(
            path, "is not a safetensors file: no header length and JSON at its start", "give a .safetensors file"
        )
    if 8 + length > size:
        raise _defect(path, f"is truncated inside its header ({size} of at least {8 + length} bytes)", "copy it again")
    return length


def _parse(path: Path, text: bytes) -> dict[str, Tensor]:
    try:
        entries: dict[str, Any] = json.loads(text)
        entries.pop("__metadata__", None)
        return {name: _tensor(entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _defect(path, f"has a damaged header: {error}", "copy or download it again") from error


def _tensor(entry: dict[str, Any]) -> Tensor:
    begin, end = (_count(offset) for offset in entry["data_offsets"])
    tensor = Tensor(dtype=str(entry["dtype"]), shape=tuple(_count(n) for n in entry["shape"]), begin=begin, end=end)
    expected = math.prod(tensor.shape) * WIDTHS.get(tensor.dtype, 0)
    if tensor.dtype in WIDTHS and end - begin != expected:
        raise ValueError(f"a {tensor.dtype} tensor of shape {list(tensor.shape)} holds {end - begin} bytes")
    return tensor


def _count(value: object) -> int:
    if type(value) is not int or value < 0:  # JSON's 1e999 is an infinite float, its true a bool
        raise ValueError(f"{str(value)[:40]} is neither a size nor an offset")
    return value


def _check_offsets(path: Path, tensors: dict[str, Tensor], data_length: int) -> None:
    if not tensors:
        raise _defect(path, "holds no tensors", "give the drafter's weights")
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin != position:
            raise _defect(path, f"has a gap or an overlap before tensor {name}", "copy or download it again")
        position = tensor.end
    if data_length < position:
        missing = position - data_length
        raise _defect(path, f"is truncated: {missing} of {position} bytes of tensors are missing", "copy it again")
    if data_length > position:
        raise _defect(path, f"has {data_length - position} bytes after its last tensor", "copy or download it again")
