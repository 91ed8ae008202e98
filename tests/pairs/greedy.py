"""Greedy decoding with transformers in fp32, and how clear each choice was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from tests.pairs import tokenizer


@dataclass(frozen=True)
class Greedy:
    """``prompts[i]`` and ``outputs[i]`` are token ids; ``gaps`` [prompts, new] is each choice's top-1/top-2 logit
    gap."""

    prompts: list[list[int]]
    outputs: list[list[int]]
    gaps: Tensor


@torch.no_grad()
def decode(model: Any, texts: tuple[str, ...], new: int) -> Greedy:
    """``new`` greedy tokens for each text, past any EOS; one left-padded batch."""
    encode = tokenizer.build()
    prompts: list[list[int]] = [encode(text).input_ids for text in texts]
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.PAD] * (longest - len(p)) + p for p in prompts])
    settings = GenerationConfig(
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=tokenizer.PAD,
        output_logits=True,
        return_dict_in_generate=True,
    )
    made = model.generate(ids, attention_mask=(ids != tokenizer.PAD).long(), generation_config=settings)
    top = torch.stack(made.logits, dim=1).float().topk(2, dim=-1).values
    return Greedy(prompts, made.sequences[:, longest:].tolist(), top[..., 0] - top[..., 1])
