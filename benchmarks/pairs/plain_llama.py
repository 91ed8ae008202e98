"""The file's model once more, in numpy alone: python -m benchmarks.pairs.plain_llama GGUF OUT.json

A second implementation, for where llama.cpp cannot be built: byte-level BPE over the file's own merges, RoPE by
neighbouring pairs as the file has its rows, and nothing of transformers. Writes what `reference.py` writes. Slow: a
second a token.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import regex

from benchmarks.pairs.reference import BEST, NEW, logprobs, rendered
from benchmarks.pairs.smollm2 import Floats, dequantised

WORDS = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
"""GPT-2's split into words; before it, every digit is cut off by itself."""


def byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(moved)}


class Tokenizer:
    """Byte-level BPE: `vocabulary` in order of ids, `merges` in order of rank; `special` tokens are found before anything
    else.
    """

    def __init__(self, vocabulary: list[str], merges: list[str], special: list[str]) -> None:
        self.ids = {token: i for i, token in enumerate(vocabulary)}
        self.rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        self.special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        self.letters = byte_letters()

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for part in self.special.split(text):
            if self.special.fullmatch(part):
                found.append(self.ids[part])
                continue
            for piece in regex.split(r"(\p{N})", part):
                for word in WORDS.findall(piece):
                    found += [self.ids[token] for token in self._merged([self.letters[b] for b in word.encode()])]
        return found

    def _merged(self, parts: list[str]) -> list[str]:
        while len(parts) > 1:
            ranked = [(self.rank.get(pair, len(self.rank)), i) for i, pair in enumerate(pairwise(parts))]
            best, at = min(ranked)
            if best == len(self.rank):
                break
            parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
        return parts


class Llama:
    """Grouped-query attention, RMSNorm, a gated MLP, a cache of keys and values; `tensors` under their names in the file."""

    def __init__(self, tensors: dict[str, Floats], sizes: dict[str, float]) -> None:
        self.t, self.s = tensors, sizes
        self.cache: list[tuple[Floats, Floats]] = []

    def _norm(self, x: Floats, name: str) -> Floats:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.s["eps"]) * self.t[name + ".weight"]

    def _rotated(self, x: Floats, start: int) -> Floats:
        """`x` [tokens, heads, head]: neighbours (2i, 2i + 1) turn by position / base^(2i / head)."""
        tokens, _, head = x.shape
        angle = (start + np.arange(tokens))[:, None, None] * self.s["base"] ** (-np.arange(0, head, 2) / head)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(np.float32)

    def _attention(self, x: Floats, layer: int, start: int) -> Floats:
        name, heads, kv = f"blk.{layer}.", int(self.s["heads"]), int(self.s["kv_heads"])
        q, k, v = (
            (x @ self.t[f"{name}attn_{part}.weight"].T).reshape(len(x), count, -1)
            for part, count in (("q", heads), ("k", kv), ("v", kv))
        )
        q, k = self._rotated(q, start), self._rotated(k, start)
        if layer < len(self.cache):
            k, v = np.concatenate([self.cache[layer][0], k]), np.concatenate([self.cache[layer][1], v])
            self.cache[layer] = (k, v)
        else:
            self.cache.append((k, v))
        grouped = q.reshape(len(x), kv, heads // kv, -1)
        scores = np.einsum("tkgd,skd->kgts", grouped, k) / np.sqrt(q.shape[-1])
        later = np.arange(len(k))[None] > start + np.arange(len(x))[:, None]
        scores = np.where(later, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("kgts,skd->tkgd", weights / weights.sum(-1, keepdims=True), v)
        return mixed.reshape(len(x), -1).astype(np.float32) @ self.t[name + "attn_output.weight"].T

    def step(self, ids: list[int]) -> Floats:
        """Logits after the last of `ids`, which follow what was given before."""
        start = len(self.cache[0][0]) if self.cache else 0
        x = self.t["token_embd.weight"][ids]
        for layer in range(int(self.s["layers"])):
            name = f"blk.{layer}."
            x = x + self._attention(self._norm(x, name + "attn_norm"), layer, start)
            y = self._norm(x, name + "ffn_norm")
            gate = y @ self.t[name + "ffn_gate.weight"].T
            up = y @ self.t[name + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.t[name + "ffn_down.weight"].T
        return self._norm(x[-1], "output_norm") @ self.t["token_embd.weight"].T


def read(gguf: Path) -> tuple[Tokenizer, dict[str, Floats], dict[str, float]]:
    """(tokenizer, tensors, sizes) of the file."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    tensors = {}
    for tensor in reader.tensors:
        raw, kind = np.array(tensor.data), tensor.tensor_type.name
        tensors[tensor.name] = raw if kind == "F32" else dequantised(raw, kind, int(tensor.shape[0])).astype(np.float32)

    def of(name: str) -> Any:
        return reader.fields[name].contents()

    vocabulary, kinds = of("tokenizer.ggml.tokens"), of("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(vocabulary, kinds, strict=True) if kind == 3]
    sizes = {
        "layers": of("llama.block_count"),
        "heads": of("llama.attention.head_count"),
        "kv_heads": of("llama.attention.head_count_kv"),
        "base": of("llama.rope.freq_base"),
        "eps": of("llama.attention.layer_norm_rms_epsilon"),
    }
    return Tokenizer(vocabulary, of("tokenizer.ggml.merges"), special), tensors, sizes


def main() -> None:
    path, new = Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else NEW
    tokenizer, tensors, sizes = read(path)
    prompts = []
    for text in rendered():
        ids = tokenizer.encode(text)
        model, tokens, best, given = Llama(tensors, sizes), [], [], ids
        for _ in range(new):
            found = logprobs(model.step(given))
            top = np.argsort(-found)[:BEST]
            tokens.append(int(top[0]))
            best.append({str(int(token)): round(float(found[token]), 5) for token in top})
            given = tokens[-1:]
        prompts.append({"text": text, "ids": ids, "tokens": tokens, "best": best})
        made = {"by": f"numpy {np.__version__}, written out", "file": path.name, "prompts": prompts}
        Path(sys.argv[2]).write_text(json.dumps(made) + "\n")
        print(f"{len(prompts)} of {len(rendered())}", flush=True)


if __name__ == "__main__":
    main()
