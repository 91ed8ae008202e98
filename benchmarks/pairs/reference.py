"""What llama.cpp makes of the same file: build/reference/bin/python -m benchmarks.pairs.reference GGUF OUT.json [--float32]

A dozen prompts through llama-cpp-python (benchmarks/pairs/install.sh reference), greedy: tokens of the prompt, the tokens
chosen, and the log-probabilities of the best few at each. `check_target` holds the Hugging Face folder against it.
Imports nothing of torch.

llama.cpp multiplies quantised weights with activations rounded to 8 bits. --float32 lets it turn the file's weights into float32
first, which takes that rounding away.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

NEW, BEST = 32, 8
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = (
    "What is gravity?",
    "Write a Python function that adds two numbers.",
    "What is 17 plus 25?",
    "List three uses of a lighthouse.",
    "Translate 'good morning' into French.",
    "Extract the city from: Kofi flew to Accra on Friday.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
)
PLAIN = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,  12345\t67",
)


def rendered() -> list[str]:
    """The prompts as text: eight chats in the template's own words, four plain beginnings."""
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    chats = [turn.format("system", SYSTEM) + turn.format("user", q) + "<|im_start|>assistant\n" for q in QUESTIONS]
    return [*chats, *PLAIN]


def logprobs(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def greedy(model: Any, ids: list[int], new: int) -> tuple[list[int], list[dict[str, float]]]:
    """(tokens, the best few log-probabilities at each) after `ids`, past any end token."""
    model.reset()
    model.eval(ids)
    tokens, best = [], []
    for _ in range(new):
        found = logprobs(np.array(model.scores[model.n_tokens - 1]))
        top = np.argsort(-found)[:BEST]
        tokens.append(int(top[0]))
        best.append({str(int(token)): round(float(found[token]), 5) for token in top})
        model.eval([tokens[-1]])
    return tokens, best


def dequantised(source: Path, out: Path) -> Path:
    """The file with float32 weights, by llama.cpp itself; raises SystemExit where it does not."""
    import llama_cpp

    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(wanted)):
        raise SystemExit(f"{source}: llama.cpp did not dequantise it")
    return out


def answered(source: Path) -> list[dict[str, Any]]:
    """Of each prompt its text, ids, the greedy tokens and the best few at each."""
    import llama_cpp

    model = llama_cpp.Llama(str(source), n_ctx=512, logits_all=True, verbose=False, seed=0)
    prompts = []
    for text in rendered():
        ids = model.tokenize(text.encode(), add_bos=False, special=True)
        tokens, best = greedy(model, ids, NEW)
        prompts.append({"text": text, "ids": ids, "tokens": tokens, "best": best})
    return prompts


def main() -> None:
    import llama_cpp

    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.reference")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--float32", action="store_true", help="with the file's weights turned into float32")
    given = parser.parse_args()
    by = f"llama-cpp-python {llama_cpp.__version__}"
    if given.float32:
        with tempfile.TemporaryDirectory() as folder:
            prompts = answered(dequantised(given.gguf, Path(folder) / "float32.gguf"))
        by += ", weights in float32"
    else:
        prompts = answered(given.gguf)
    given.out.write_text(json.dumps({"by": by, "file": given.gguf.name, "prompts": prompts}) + "\n")


if __name__ == "__main__":
    main()
