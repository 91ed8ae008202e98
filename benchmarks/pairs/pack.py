"""A trained pair as a few files small enough to travel: python -m benchmarks.pairs.pack unpack FOLDER PAIR"""

from __future__ import annotations

import argparse
import io
import tarfile
from pathlib import Path

PIECE = 15 << 20
"""Bytes of one file at most."""


def pack(pair: Path, parts: tuple[str, ...], out: Path) -> list[Path]:
    """Tars `parts` of the pair into out/pair.tar.0, .1, ...; returns the files."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for part in parts:
            tar.add(pair / part, arcname=part)
    data, out_files = held.getvalue(), []
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("pair.tar.*"):
        old.unlink()
    for number, start in enumerate(range(0, len(data), PIECE)):
        out_files.append(out / f"pair.tar.{number}")
        out_files[-1].write_bytes(data[start : start + PIECE])
    return out_files


def unpack(folder: Path, pair: Path) -> None:
    """Puts the parts back under `pair`."""
    pieces = sorted(folder.glob("pair.tar.*"), key=lambda path: int(path.suffix[1:]))
    if not pieces:
        raise SystemExit(f"{folder}: no pair.tar.0")
    with tarfile.open(fileobj=io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))) as tar:
        tar.extractall(pair, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.pack")
    parser.add_argument("verb", choices=("unpack",))
    parser.add_argument("folder", type=Path)
    parser.add_argument("pair", type=Path)
    given = parser.parse_args()
    unpack(given.folder, given.pair)


if __name__ == "__main__":
    main()
