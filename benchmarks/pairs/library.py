"""Text that lies on every machine: the Python standard library under the running interpreter (licence PSF), and a tokenizer
of it.

Two sets: "code", modules as they are written, and "docs", the language reference in pydoc_data and long docstrings. Whole
files are held out for evaluation, and a prompt cut from them is used only if no run of its words stands in a training
file.
"""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pairs.texts import Prompt, refuse_shared, runs

SETS = ("code", "docs")
END, MASK = "<|end|>", "<|mask|>"
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "lib2to3", "idlelib", "turtledemo", "encodings", "config-")
EVERY = 12
"""One file in so many is held out."""
RUN = 10


@dataclass(frozen=True)
class Library:
    """Texts by set: what is trained on, and what is held out."""

    learn: dict[str, tuple[str, ...]]
    held: dict[str, tuple[str, ...]]

    def trained(self) -> Iterator[str]:
        for kind in SETS:
            yield from self.learn[kind]


def files(root: Path | None = None) -> list[Path]:
    """The library's modules, sorted; tests only where they are installed, tables of code points never."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    return sorted(p for p in root.rglob("*.py") if not any(part in str(p.relative_to(root)) for part in LEFT_OUT))


def docstrings(source: str) -> list[str]:
    """Docstrings of 200 characters and more."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for text in found if text and len(text) >= 200]


def read(paths: Iterable[Path]) -> Library:
    """Splits by a hash of the file's name; reads pydoc_data/topics.py entry by entry."""
    learn: dict[str, list[str]] = {kind: [] for kind in SETS}
    held: dict[str, list[str]] = {kind: [] for kind in SETS}
    for path in paths:
        source = path.read_text("utf-8", errors="ignore")
        if path.name == "topics.py":
            for name, text in _topics(source):
                (held if _is_held(name) else learn)["docs"].append(text)
            continue
        side = held if _is_held(path.name) else learn
        if 400 <= len(source) <= 200_000:
            side["code"].append(source)
        side["docs"] += docstrings(source)
    return Library({k: tuple(v) for k, v in learn.items()}, {k: tuple(v) for k, v in held.items()})


def _topics(source: str) -> list[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            return [(k.value, v.value) for k, v in zip(node.keys, node.values, strict=True)
                    if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)]  # fmt: skip
    return []


def _is_held(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % EVERY == 0


def prompts(library: Library, per_set: int, seed: int, *, lines: int = 8) -> list[Prompt]:
    """`per_set` beginnings of `lines` lines of each set, out of held-out text: fewer where a library is small.

    Raises SystemExit where there is not even a third of them.
    """
    rng, chosen = random.Random(seed), []
    known: set[tuple[str, ...]] = set()
    for text in library.trained():
        known |= runs(text, RUN)
    for kind in SETS:
        windows = [window for text in library.held[kind] for window in _windows(text, lines)]
        rng.shuffle(windows)
        clean = [window for window in windows if not runs(window, RUN) & known][:per_set]
        if 3 * len(clean) < per_set:
            raise SystemExit(
                f"{kind}: {len(clean)} held-out beginnings share nothing with training, {per_set} are wanted"
            )
        chosen += [Prompt(kind, window) for window in clean]
    refuse_shared([prompt.text for prompt in chosen], library.trained(), RUN)
    return chosen


def _windows(text: str, lines: int) -> list[str]:
    rows = text.splitlines()
    cut = ["\n".join(rows[i : i + lines]) for i in range(0, max(1, len(rows) - lines), 2 * lines)]
    return [window + "\n" for window in cut if 120 <= len(window) <= 700]


def training_windows(library: Library, count: int, seed: int) -> list[Prompt]:
    """Beginnings from the training text, for the target to continue."""
    rng = random.Random(seed)
    found = [Prompt(kind, window) for kind in SETS for text in library.learn[kind] for window in _windows(text, 8)]
    rng.shuffle(found)
    return found[:count]


def train_tokenizer(library: Library, vocabulary: int, folder: Path) -> Any:
    """Byte-level BPE over the training text, saved into the folder; tokens 0 and 1 are END and MASK."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        library.trained(), vocab_size=vocabulary, min_frequency=2, special_tokens=[END, MASK], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=END, pad_token=END, mask_token=MASK)
    tokenizer.save_pretrained(folder)
    return tokenizer
