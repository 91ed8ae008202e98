"""top_logprobs finds, in two launches, what a stable sort of float64 log-probabilities begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drafts import DEVICE, POISON
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ext.kernels.topk import read_chunks, top_logprobs
from ddtree_ext.kernels.topk_merge import merge_ranks, narrow_chunks
from ddtree_ext.kernels.topk_scratch import MAX_RANKS, TopkScratch

TYPES = (torch.bfloat16, torch.float16, torch.float32)


def found(logits: torch.Tensor, ranks: int, scratch: TopkScratch | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and ids, in outputs and scratch that held something else before."""
    rows, vocabulary = logits.shape
    scratch = scratch or TopkScratch.allocate(rows, vocabulary, ranks, DEVICE)
    for tensor in (scratch.keys, scratch.high, scratch.total):
        tensor.fill_(-POISON)
    logprobs = torch.full((rows, ranks), float("nan"), dtype=torch.float32)
    ids = torch.full((rows, ranks), POISON, dtype=torch.int64)
    top_logprobs(logits, scratch, logprobs, ids)
    return logprobs, ids


def expected(logits: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of equal logits the smaller id first; a row of masked tokens alone has no probability anywhere."""
    order = logits.double().sort(dim=-1, descending=True, stable=True)
    lse = logits.double().logsumexp(-1, keepdim=True)
    logprobs = torch.where(order.values == -torch.inf, -torch.inf, order.values - lse)
    return logprobs[:, :ranks], order.indices[:, :ranks]


def assert_right(logits: torch.Tensor, ranks: int, scratch: TopkScratch | None = None) -> None:
    logprobs, ids = found(logits, ranks, scratch)
    right, order = expected(logits, ranks)
    assert torch.equal(ids, order)
    torch.testing.assert_close(logprobs, right.float(), rtol=1e-6, atol=2e-6)


def cut(rows: int, vocabulary: int, ranks: int, block: int, tiles: int) -> TopkScratch:
    """Scratch that cuts the vocabulary into chunks of tiles * block."""
    return TopkScratch.allocate(rows, vocabulary, ranks, DEVICE, block=block, tiles=tiles)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", [1, 7, 16])
@pytest.mark.parametrize(("vocabulary", "block", "tiles"), [(509, 512, 1), (1009, 64, 4), (4099, 256, 16)])
def test_random_logits(
    rng: torch.Generator, dtype: torch.dtype, ranks: int, vocabulary: int, block: int, tiles: int
) -> None:
    """Prime vocabularies: one tile; several chunks; one whole chunk and one of three elements."""
    logits = torch.randn(3, vocabulary, generator=rng).mul(4).to(dtype)
    assert_right(logits, ranks, cut(3, vocabulary, ranks, block, tiles))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
class TestKindsOfLogits:
    """15 rows of 1009 tokens: four chunks of four tiles."""

    RANKS = 16

    def assert_right(self, logits: torch.Tensor) -> None:
        assert_right(logits, self.RANKS, cut(logits.shape[0], logits.shape[1], self.RANKS, 64, 4))

    def test_ties(self, rng: torch.Generator, dtype: torch.dtype) -> None:
        """Three values, both zeros among them: nearly every decision is by id, within columns, tiles and chunks."""
        logits = torch.randint(-1, 2, (15, 1009), generator=rng).to(dtype)
        logits[:, ::3] *= -1.0  # 0 becomes -0
        self.assert_right(logits)

    def test_constant(self, dtype: torch.dtype) -> None:
        self.assert_right(torch.full((2, 1009), 3.5, dtype=dtype))
        self.assert_right(torch.full((2, 1009), -3.5, dtype=dtype))

    def test_masked_tokens_come_last(self, rng: torch.Generator, dtype: torch.dtype) -> None:
        """Whole chunks are masked, and rows of many, few, one and no tokens that are not."""
        logits = torch.randn(5, 1009, generator=rng).to(dtype)
        logits[:, 200:600] = -torch.inf
        for row, left in enumerate((600, 40, 9, 1, 0)):
            order = torch.randperm(1009, generator=rng)
            logits[row, order[left:]] = -torch.inf
        self.assert_right(logits)
        logprobs, ids = found(logits, self.RANKS)
        assert (logprobs[3, 1:] == -torch.inf).all()
        assert logprobs[3, 0].item() in (0.0, -torch.inf)
        assert (logprobs[4] == -torch.inf).all()
        assert ids[4].tolist() == list(range(self.RANKS))

    def test_peaked(self, rng: torch.Generator, dtype: torch.dtype) -> None:
        """One token has nearly all the probability: its log-probability is still exact to float32."""
        logits = torch.randn(4, 1009, generator=rng)
        logits[torch.arange(4), torch.tensor([0, 70, 700, 1008])] = torch.tensor([30.0, 80.0, 500.0, 15.0])
        self.assert_right(logits.to(dtype))

    def test_the_best_may_share_a_column(self, rng: torch.Generator, dtype: torch.dtype) -> None:
        """Tokens 5, 69, 133, 197 are elements of one column, and the next tokens of the next: all are found."""
        logits = torch.randn(2, 1009, generator=rng)
        logits[:, [5, 69, 133, 197, 6, 70, 134]] += 20
        self.assert_right(logits.to(dtype))

    def test_large_and_lowest_numbers(self, rng: torch.Generator, dtype: torch.dtype) -> None:
        """A mask of float32's lowest numbers, as some write it, is no -inf; and 1e4 is not much."""
        logits = torch.randn(3, 1009, generator=rng).mul(1e4)
        logits[:, 10:] = torch.finfo(dtype).min
        self.assert_right(logits.to(dtype))

    def test_rows_may_lie_apart(self, rng: torch.Generator, dtype: torch.dtype) -> None:
        """As logits do that were cut from a padded vocabulary; what lies between is larger and not read."""
        padded = torch.full((15, 1100), 99.0, dtype=dtype)
        padded[:, :1009] = torch.randn(15, 1009, generator=rng)
        self.assert_right(padded[:, :1009])
        self.assert_right(padded[::4, :1009])


def test_one_program_a_row_as_on_a_gpu(rng: torch.Generator) -> None:
    logits = torch.randn(3, 1009, generator=rng).bfloat16()
    assert_right(logits, 16, replace(cut(5, 1009, 16, 64, 4), wide=False))


def test_more_rows_than_one_program_takes(rng: torch.Generator) -> None:
    assert_right(torch.randn(130, 2503, generator=rng).bfloat16(), 2)


def test_no_rows_are_no_work() -> None:
    """A batch that drafts nothing: no program reads or writes, in scratch for some rows or for none."""
    for most in (0, 3):
        scratch = cut(most, 1009, 16, 64, 4)
        logprobs, ids = found(torch.empty(0, 1009), 16, scratch)
        assert (logprobs.shape, ids.shape) == ((0, 16), (0, 16))
        assert (scratch.high == -POISON).all()


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_any_cut_of_any_vocabulary(data: st.DataObject, seed: int) -> None:
    """Few levels or many, holes or none; scratch for more rows than come; chunks up to larger than the vocabulary."""
    vocabulary = data.draw(st.integers(1, 300), "vocabulary")
    ranks = data.draw(st.integers(1, min(vocabulary, MAX_RANKS)), "ranks")
    rows = data.draw(st.integers(1, 4), "rows")
    block = max(1 << (ranks - 1).bit_length(), data.draw(st.sampled_from([16, 32, 128]), "block"))
    scratch = cut(rows + data.draw(st.integers(0, 3)), vocabulary, ranks, block, data.draw(st.sampled_from([1, 2, 8])))
    rng = torch.Generator(DEVICE).manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=rng) * data.draw(st.sampled_from([0.0, 0.5, 3.0]), "spread")
    if data.draw(st.booleans(), "few levels"):
        logits = logits.round()
    logits[torch.rand(logits.shape, generator=rng) < data.draw(st.sampled_from([0.0, 0.3, 0.97]))] = -torch.inf
    assert_right(logits.to(data.draw(st.sampled_from(TYPES))), ranks, scratch)


def over_ranks(logits: torch.Tensor, ranks: int, shards: list[int], block: int, tiles: int) -> tuple[torch.Tensor, ...]:
    """What every one of the ranks finds whose shards of the vocabulary these are, and what is exchanged between them."""
    rows, merged, first = len(logits), [], 0
    scratches = []
    for size in shards:
        scratches.append(TopkScratch.allocate(rows + 1, size, ranks, DEVICE, block=block, tiles=tiles, first=first))
        found = torch.full((rows, scratches[-1].keys.shape[2] + 1), POISON, dtype=torch.int64)
        read_chunks(logits[:, first : first + size], scratches[-1])
        narrow_chunks(rows, scratches[-1], found)
        merged.append(found)
        first += size
    logprobs, ids = torch.full((rows, ranks), torch.nan), torch.full((rows, ranks), POISON, dtype=torch.int64)
    merge_ranks(torch.cat(merged).view(len(shards), *merged[0].shape), scratches[0], logprobs, ids)
    return logprobs, ids


@pytest.mark.parametrize("shards", [[509], [254, 255], [300, 209], [160, 160, 160, 29]])
@pytest.mark.parametrize("ranks", [5, 16])
def test_ranks_with_shards_of_the_vocabulary_find_what_one_finds_in_all_of_it(
    rng: torch.Generator, ranks: int, shards: list[int]
) -> None:
    """Unequal shards, the last of them smaller than a tile; ties across their border; one without any token that is not masked."""
    logits = torch.randn(3, 509, generator=rng)
    logits[1] = logits[1].round()
    logits[2, : shards[0]] = -torch.inf if len(shards) > 1 else 0.0
    logprobs, ids = over_ranks(logits, ranks, shards, 64, 2)
    right, order = expected(logits, ranks)
    assert torch.equal(ids, order)
    torch.testing.assert_close(logprobs, right.float(), rtol=1e-6, atol=2e-6)


class TestRefusals:
    def test_ranks_beyond_the_vocabulary_or_the_largest_tree(self) -> None:
        for vocabulary, ranks in ((10, 11), (1000, MAX_RANKS + 1), (10, 0)):
            with pytest.raises(ValueError, match=f"{ranks} ranks of {vocabulary} tokens"):
                TopkScratch.allocate(1, vocabulary, ranks, DEVICE)

    @pytest.mark.parametrize(("block", "tiles"), [(8, 4), (4096, 32)])
    def test_chunks_that_are_too_narrow_or_too_large(self, block: int, tiles: int) -> None:
        with pytest.raises(ValueError, match="does not hold 16 ranks"):
            TopkScratch.allocate(1, 1 << 20, 16, DEVICE, block=block, tiles=tiles)

    def test_what_the_scratch_is_not_for(self) -> None:
        scratch, logprobs, ids = cut(2, 40, 3, 16, 2), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64)
        with pytest.raises(ValueError, match="at most 2 rows of 40"):
            top_logprobs(torch.zeros(3, 40), scratch, logprobs, ids)
        with pytest.raises(ValueError, match="at most 2 rows of 40"):
            top_logprobs(torch.zeros(2, 41), scratch, logprobs, ids)
        with pytest.raises(ValueError, match="contiguous rows"):
            top_logprobs(torch.zeros(2, 40).double(), scratch, logprobs, ids)
        with pytest.raises(ValueError, match="contiguous rows"):
            top_logprobs(torch.zeros(40, 2).T, scratch, logprobs, ids)
        with pytest.raises(ValueError, match="logprobs is"):
            top_logprobs(torch.zeros(2, 40), scratch, logprobs.double(), ids)
        with pytest.raises(ValueError, match="ids is"):
            top_logprobs(torch.zeros(2, 40), scratch, logprobs, ids[:, :2])

    def test_what_ranks_cannot_exchange(self) -> None:
        scratch, logprobs, ids = cut(2, 40, 3, 16, 2), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64)
        for found in (torch.zeros(1, 5).long(), torch.zeros(2, 4).long(), torch.zeros(2, 5).int()):
            with pytest.raises(ValueError, match=r"must be a contiguous \(2, 5\) int64"):
                narrow_chunks(2, scratch, found)
        with pytest.raises(ValueError, match=r"must be \(ranks, rows, 5\) int64"):
            merge_ranks(torch.zeros(2, 2, 4).long(), scratch, logprobs, ids)
        with pytest.raises(ValueError, match="logprobs is"):
            merge_ranks(torch.zeros(2, 1, 5).long(), scratch, logprobs, ids)
