"""Holds SmolLM2's Hugging Face folder against llama.cpp: python -m benchmarks.pairs.check_target TARGET REFERENCE.json

Along the reference's own greedy tokens: are the prompts tokenised alike, is the first choice the same, and how far apart
are the log-probabilities of the reference's best few. llama.cpp multiplies in 8 bits, so logits differ a little, and near
ties may fall the other way: a choice counts as different only where our gap between the two is above GAP.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.pairs.write_text import chat_ids

GAP = 0.5
FAR = 0.25
"""Mean distance of log-probabilities that is no rounding any more."""


@dataclass(frozen=True)
class Finding:
    """Of one prompt: same tokens in; first choices that agree, of how many; gaps in nats where they do not; mean distance."""

    text: str
    tokenised_alike: bool
    same: int
    of: int
    gaps: tuple[float, ...]
    distance: float

    @property
    def good(self) -> bool:
        return self.tokenised_alike and all(gap <= GAP for gap in self.gaps) and self.distance <= FAR


@torch.no_grad()
def compare(model: Any, tokenizer: Any, prompt: dict[str, Any]) -> Finding:
    """One prompt of the reference against the model in fp32."""
    ids, tokens = prompt["ids"], prompt["tokens"]
    alike = tokenizer(prompt["text"], add_special_tokens=False)["input_ids"] == ids
    logits = model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].float()
    mine = logits.log_softmax(-1)
    chosen = torch.tensor(tokens)
    gaps = (mine.max(-1).values - mine.gather(1, chosen[:, None])[:, 0]).tolist()
    apart = [
        abs(float(mine[i, int(token)]) - value)
        for i, best in enumerate(prompt["best"])
        for token, value in list(best.items())[:3]
    ]
    same = sum(gap == 0 for gap in gaps)
    return Finding(
        prompt["text"], alike, same, len(tokens), tuple(round(g, 4) for g in gaps if g), sum(apart) / len(apart)
    )


def check(target: Path, reference: dict[str, Any]) -> list[Finding]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(target)
    return [compare(model, tokenizer, prompt) for prompt in reference["prompts"]]


def template_agrees(target: Path, reference: dict[str, Any]) -> bool:
    """Whether the folder's chat template renders what the reference was asked."""
    from transformers import AutoTokenizer

    from benchmarks.pairs.reference import QUESTIONS

    tokenizer = AutoTokenizer.from_pretrained(target)
    asked = [prompt["ids"] for prompt in reference["prompts"][: len(QUESTIONS)]]
    return [chat_ids(tokenizer, question) for question in QUESTIONS] == asked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs.check_target")
    parser.add_argument("target", type=Path)
    parser.add_argument("reference", type=Path)
    given = parser.parse_args()
    reference = json.loads(given.reference.read_text())
    findings = check(given.target, reference)
    for found in findings:
        verdict = "ok" if found.good else "DIFFERS"
        print(
            f"{verdict:<8}{found.same} of {found.of}, apart {found.distance:.3f}, gaps {list(found.gaps)}  {found.text[-40:]!r}"
        )
    same, of = sum(found.same for found in findings), sum(found.of for found in findings)
    nearest, farthest = (pick(found.distance for found in findings) for pick in (min, max))
    print(f"first choices {same} of {of}; log-probabilities {nearest:.3f} to {farthest:.3f} nats apart by prompt")
    same_template = template_agrees(given.target, reference)
    print(f"chat template: {'as asked' if same_template else 'DIFFERS'}; against {reference['by']}")
    return int(not (same_template and all(found.good for found in findings)))


if __name__ == "__main__":
    raise SystemExit(main())
