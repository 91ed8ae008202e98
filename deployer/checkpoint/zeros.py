"""Regions of zeros in a checkpoint, judged: a copy or a download that did not finish, or weights that are zero."""

from __future__ import annotations

from collections.abc import Iterable

from deployer.checkpoint.header import Header, Tensor
from deployer.checkpoint.remote_zeros import PAGE

RUN = 1 << 16  # bytes; in a model of unknown make, less than this is no sign of anything
Runs = Iterable[tuple[int, int]]  # of whole zero pages: [begin, end) in bytes from the file's beginning
VOCABULARY = ("embed", "lm_head")  # their last rows pad the vocabulary and may be zero


def in_trained(header: Header, runs: Runs) -> tuple[str, ...]:
    """For weights that were trained throughout, a drafter's: each zero page is damage. One sentence each."""
    touched = ((begin, end, _touched(header, begin, end)) for begin, end in runs)
    return tuple(_sentence(next(iter(tensors)), begin, end) for begin, end, tensors in touched if tensors)


def in_any(header: Header, runs: Runs) -> tuple[str, ...]:
    """For any model: zeros in a part of a tensor, or across the border of two. One sentence each.

    A tensor that is zero as a whole may be meant so, and so may the last rows of a vocabulary.
    """
    found = []
    for begin, end in runs:
        tensors = _touched(header, begin, end) if end - begin >= RUN else {}
        if len(tensors) > 1 or any(not _excused(header, *item, begin, end) for item in tensors.items()):
            found.append(_sentence(next(iter(tensors)), begin, end))
    return tuple(found)


def _touched(header: Header, begin: int, end: int) -> dict[str, Tensor]:
    """The tensors that have bytes in [begin, end) of the file, in the header's order."""
    start = header.data_start
    return {
        name: tensor
        for name, tensor in header.tensors.items()
        if start + tensor.begin < end and begin < start + tensor.end
    }


def _excused(header: Header, name: str, tensor: Tensor, begin: int, end: int) -> bool:
    # Runs are whole pages, so the edges of a tensor of zeros lie up to a page outside its run.
    starts, ends = header.data_start + tensor.begin, header.data_start + tensor.end
    whole = begin - starts < PAGE and ends - end < PAGE
    return whole or (ends - end < PAGE and any(word in name for word in VOCABULARY))


def _sentence(name: str, begin: int, end: int) -> str:
    return f"{name}: bytes {begin} to {end} of the file are zeros (a copy or download that did not finish?)"
