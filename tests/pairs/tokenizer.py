"""The pairs' tokenizer: one token per word of the grammar, and one per byte for all other text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.pairs.grammar import WORDS

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|pad|>", "<|mask|>",
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
FIRST_WORD = len(BYTES) + len(SPECIALS)
VOCAB = 352
"""Size of the embedding; a little more than there are tokens, as in the released checkpoints."""
EOS, PAD, MASK = (len(BYTES) + SPECIALS.index(s) for s in ("<|im_end|>", "<|pad|>", "<|mask|>"))
assert FIRST_WORD + len(WORDS) <= VOCAB

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build() -> PreTrainedTokenizerFast:
    """Byte-level pieces, so any text has tokens; a word of the grammar, with the space before it, is one token."""
    pieces = [(char, -10.0) for char in BYTES]
    pieces += [(special, 0.0) for special in SPECIALS]
    pieces += [("Ġ" + word, -1.0) for word in WORDS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>", model_max_length=4096
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def word_ids(words: list[str]) -> list[int]:
    """Token ids of grammar words, full stops and question marks."""
    table = {word: FIRST_WORD + i for i, word in enumerate(WORDS)} | {mark: BYTES.index(mark) for mark in ".?"}
    return [table[word] for word in words]


def save(folder: Path) -> PreTrainedTokenizerFast:
    fast = build()
    fast.save_pretrained(str(folder))
    return fast
