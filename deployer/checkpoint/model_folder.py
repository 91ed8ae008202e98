"""A whole model's folder, judged before anything is sent: each weight file, the index of the shards, config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deployer.checkpoint import content, zeros
from deployer.checkpoint.header import Header, read, refuse_impostor
from deployer.checkpoint.listing import Member, members
from deployer.errors import PreflightError, UsageError
from deployer.plan import reading

INDEX = ".safetensors.index.json"
WEIGHTS = ".safetensors"
_SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.safetensors$")
SHOWN = 8  # problems named in one message; the rest are counted


def validated(folder: Path) -> tuple[Member, ...]:
    """The files of a model that is whole. Raises PreflightError that names what is not, UsageError if it is no model."""
    if not (folder / "config.json").is_file():
        raise UsageError("not a model's folder: no config.json", where=str(folder), remedy="correct target.push")
    found = members(folder)
    for member in found:
        _refuse_impostor(folder, member)
    headers = {member.name: read(folder / member.name) for member in found if member.name.endswith(WEIGHTS)}
    texts = {member.name: _json(folder, member) for member in found if member.name.endswith(".json")}
    found_wrong = problems([member.name for member in found], headers, texts)
    if not found_wrong:  # the costly look is for what seems whole
        with reading.several(str(folder), sum(member.size for member in found)):
            found_wrong = tuple(problem for member in found for problem in _damage(member, headers.get(member.name)))
    refuse(found_wrong, str(folder), "download or copy those files again")
    return found


def problems(names: Iterable[str], headers: Mapping[str, Header], texts: Mapping[str, Any]) -> tuple[str, ...]:
    """What the files of a model say against each other: `names` are all of them, `headers` those of the weights,
    `texts` the contents of the JSON files, config.json among them.
    """
    shapes = _shapes(headers, texts["config.json"])
    return (*_weights(names), *_shards(headers), *_indices(headers, texts), *shapes)


def refuse(found: tuple[str, ...], where: str, remedy: str) -> None:
    """Raises PreflightError that lists the problems, if there are any."""
    if found:
        more = f"\n  ... and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        listed = "".join(f"\n  {problem}" for problem in found[:SHOWN])
        raise PreflightError(f"the model is not whole:{listed}{more}", where=where, remedy=remedy)


def _refuse_impostor(folder: Path, member: Member) -> None:
    """Pointers, pages and zeros in place of a file; an empty file may be meant, unless it has weights or JSON."""
    with member.source.open("rb") as file:
        start = file.read(64)
    if member.name.endswith((WEIGHTS, ".json")) or start.startswith(b"version https://git-lfs"):
        refuse_impostor(folder / member.name, start, text=member.name.endswith(".json"))


def _json(folder: Path, member: Member) -> Any:
    try:
        return json.loads(member.source.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PreflightError(
            f"{member.name} is not JSON, cut off or damaged: {error}",
            where=str(folder / member.name),
            remedy="download or copy it again",
        ) from error


def _weights(names: Iterable[str]) -> Iterator[str]:
    if not any(name.endswith((WEIGHTS, ".bin", ".pt", ".gguf")) for name in names):
        yield "it holds no weights (*.safetensors)"


def _shards(headers: Mapping[str, Header]) -> Iterator[str]:
    """NAME-00002-of-00014: what a name says about its siblings."""
    for name in headers:
        if not (match := _SHARD.match(name)):
            continue
        base, count = match[1], int(match[3])
        siblings = [f"{base}-{number:05}-of-{count:05}{WEIGHTS}" for number in range(1, count + 1)]
        missing = [sibling for sibling in siblings if sibling not in headers]
        if name == next(sibling for sibling in siblings if sibling in headers):  # said once
            yield from (f"{sibling}: missing" for sibling in missing)


def _indices(headers: Mapping[str, Header], texts: Mapping[str, Any]) -> Iterator[str]:
    for name, text in texts.items():
        if not name.endswith(INDEX):
            continue
        listed = text.get("weight_map") if isinstance(text, dict) else None
        if not isinstance(listed, dict):
            yield f"{name}: holds no weight_map"
            continue
        yield from _index(name, {str(tensor): str(shard) for tensor, shard in listed.items()}, headers)


def _index(index: str, listed: Mapping[str, str], headers: Mapping[str, Header]) -> Iterator[str]:
    """An index against the shards: a missing file is named once, a tensor in the wrong place one by one."""
    prefix = index.rpartition("/")[0] + "/" if "/" in index else ""
    shards = dict.fromkeys(prefix + shard for shard in listed.values())
    absent = [shard for shard in shards if shard not in headers]
    yield from (f"{shard}: missing, {index} names it" for shard in absent if not _SHARD.match(shard))
    for tensor, shard in listed.items():
        header = headers.get(prefix + shard)
        if header is not None and tensor not in header.tensors:
            yield f"{prefix + shard}: has no tensor {tensor}, {index} says so"
    for shard in shards:
        for tensor in headers[shard].tensors if shard in headers else ():
            if prefix + listed.get(tensor, "") != shard:
                yield f"{shard}: tensor {tensor} is not filed there in {index}"


def _shapes(headers: Mapping[str, Header], config: Any) -> Iterator[str]:
    """The embedding against config.json: weights of another model beside this one's configuration."""
    nested = config.get("text_config") if isinstance(config, dict) else None
    numbers = {**config, **(nested if isinstance(nested, dict) else {})} if isinstance(config, dict) else {}
    hidden, vocabulary = numbers.get("hidden_size"), numbers.get("vocab_size")
    for name, header in headers.items():
        for tensor, found in header.tensors.items():
            if not tensor.endswith("embed_tokens.weight") or len(found.shape) != 2:
                continue
            if isinstance(hidden, int) and found.shape[1] != hidden:
                yield f"{name}: {tensor} is {list(found.shape)}, config.json says hidden_size {hidden}"
            if isinstance(vocabulary, int) and found.shape[0] < vocabulary:
                yield f"{name}: {tensor} is {list(found.shape)}, config.json says vocab_size {vocabulary}"


def _damage(member: Member, header: Header | None) -> Iterator[str]:
    """What only a look at every byte shows."""
    held, name = content.read(member.source), member.source.name
    # Hugging Face's cache names a large file by its SHA-256.
    if member.source.parent.name == "blobs" and len(name) == 64 and name != held.sha256:
        yield f"{member.name}: its SHA-256 is {held.sha256[:12]}..., the cache's name for it is {name[:12]}..."
    if header is not None:
        yield from (f"{member.name}: {problem}" for problem in zeros.in_any(header, held.zeros))
