"""Attention of tree rows over a paged KV cache: the committed prefix, then the row's own ancestors, nothing else.

Split-KV ("flash-decoding"): a fixed grid over request, KV head, and split times row tile leaves one partial output and
log-sum-exp per row and split; a second kernel combines them. Sequence lengths are read on the device, so one captured
graph serves any length. The query heads of one KV head share a tile with the rows. Only key tiles that reach beyond the
prefix test the ancestor words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ddtree_ext.core.buffers import TreeRows
from ddtree_ext.kernels.attention_scratch import AttentionScratch

MIN_KEYS = 256
"""Keys below which a split is not worth its partial output."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend(
    query: tl.tensor,
    acc: tl.tensor,
    high: tl.tensor,
    total: tl.tensor,
    words: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    table_ptr: tl.tensor,
    k_block: tl.tensor,
    k_token: tl.tensor,
    v_block: tl.tensor,
    v_token: tl.tensor,
    tile: tl.tensor,
    base: tl.tensor,
    seq_len: tl.tensor,
    scale: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """One more tile of keys in the running softmax. MASKED: the tile reaches beyond the prefix."""
    key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    dim = tl.arange(0, D)
    offset = key % BLOCK_SIZE
    if MASKED:
        here = key < seq_len
        block = tl.load(table_ptr + key // BLOCK_SIZE, mask=here, other=0).to(tl.int64)
        k = tl.load(k_ptr + (block * k_block + offset * k_token)[None, :] + dim[:, None], mask=here[None, :], other=0.0)
        v = tl.load(v_ptr + (block * v_block + offset * v_token)[:, None] + dim[None, :], mask=here[:, None], other=0.0)
    else:
        block = tl.load(table_ptr + key // BLOCK_SIZE).to(tl.int64)
        k = tl.load(k_ptr + (block * k_block + offset * k_token)[None, :] + dim[:, None])
        v = tl.load(v_ptr + (block * v_block + offset * v_token)[:, None] + dim[None, :])
    if UPCAST:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    score = tl.dot(query, k, input_precision="ieee") * scale
    if MASKED:
        node = key - base
        bit = (words[:, None] >> tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)[None, :]) & 1
        score = tl.where((node < 0)[None, :] | ((bit != 0) & (node < 64)[None, :]), score, float("-inf"))
    higher = tl.maximum(high, tl.max(score, 1))
    # A row may see no key of its split's tiles at all: its maximum stays -inf, and -inf - -inf must not arise.
    shift = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
    weight = tl.exp2(score - shift[:, None])
    decay = tl.exp2(high - shift)
    acc = tl.dot(weight.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    return acc, higher, total * decay + tl.sum(weight, 1)


@triton.jit(do_not_specialize=["splits"])  # type: ignore[untyped-decorator]
def _partial_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    table_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    ancestors_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    scale: tl.tensor,
    splits: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    k_block: tl.tensor,
    k_token: tl.tensor,
    k_head: tl.tensor,
    v_block: tl.tensor,
    v_token: tl.tensor,
    v_head: tl.tensor,
    table_row: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2) % splits
    first = (tl.program_id(2) // splits) * BLOCK_M
    start = tl.load(query_start_ptr + request)
    query_len = tl.load(query_start_ptr + request + 1) - start
    rows = tl.minimum(query_len, N)
    if (tl.load(tree_len_ptr + request) == 0) | (first >= rows * GROUP):
        return

    # Query heads of this KV head and rows, packed: member = row * GROUP + head within the group.
    member = first + tl.arange(0, BLOCK_M)
    row = member // GROUP
    head = kv_head * GROUP + member % GROUP
    live = row < rows
    dim = tl.arange(0, D)
    at = (start + row).to(tl.int64) * q_token + head * q_head
    query = tl.load(q_ptr + at[:, None] + dim[None, :], mask=live[:, None], other=0.0)
    if UPCAST:
        query = query.to(tl.float32)
    words = tl.load(ancestors_ptr + start + row, mask=live, other=0)

    seq_len = tl.load(seq_lens_ptr + request)
    base = seq_len - query_len
    tiles = tl.cdiv(seq_len, BLOCK_N)
    share = tl.maximum(tl.cdiv(tiles, splits), MIN_TILES)
    begin = split * share
    end = tl.minimum(begin + share, tiles)
    plain = base // BLOCK_N  # tiles of the prefix alone

    acc = tl.zeros([BLOCK_M, D], tl.float32)
    high = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    k_ptr += kv_head * k_head
    v_ptr += kv_head * v_head
    table_ptr += request.to(tl.int64) * table_row
    for tile in tl.range(begin, tl.minimum(end, plain)):
        acc, high, total = _attend(
            query, acc, high, total, words, k_ptr, v_ptr, table_ptr, k_block, k_token, v_block, v_token,
            tile, base, seq_len, scale, BLOCK_SIZE, D, BLOCK_N, UPCAST, False,
        )  # fmt: skip
    for tile in tl.range(tl.maximum(begin, plain), end):
        acc, high, total = _attend(
            query, acc, high, total, words, k_ptr, v_ptr, table_ptr, k_block, k_token, v_block, v_token,
            tile, base, seq_len, scale, BLOCK_SIZE, D, BLOCK_N, UPCAST, True,
        )  # fmt: skip

    heads = tl.num_programs(1) * GROUP
    out = ((request * splits + split).to(tl.int64) * N + row) * heads + head
    seen = total > 0
    acc = acc / tl.where(seen, total, 1.0)[:, None]
    tl.store(partial_ptr + out[:, None] * D + dim[None, :], acc, mask=live[:, None])
    tl.store(lse_ptr + out, tl.where(seen, high + tl.log2(tl.where(seen, total, 1.0)), float("-inf")), mask=live)


@triton.jit(do_not_specialize=["splits"])  # type: ignore[untyped-decorator]
def _combine_kernel(
    partial_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    query_start_ptr: tl.tensor,
    tree_len_ptr: tl.tensor,
    out_ptr: tl.tensor,
    splits: tl.tensor,
    out_token: tl.tensor,
    out_head: tl.tensor,
    HEADS: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    request = tl.program_id(0)
    first = tl.program_id(1) * BLOCK
    start = tl.load(query_start_ptr + request)
    rows = tl.minimum(tl.load(query_start_ptr + request + 1) - start, N)
    if (tl.load(tree_len_ptr + request) == 0) | (first >= rows * HEADS):
        return
    member = first + tl.arange(0, BLOCK)  # row * HEADS + head
    live = member < rows * HEADS
    dim = tl.arange(0, D)
    split = tl.arange(0, SPLITS)
    at = request.to(tl.int64) * splits * N * HEADS + member
    every = (split < splits)[None, :] & live[:, None]
    lse = tl.load(lse_ptr + at[:, None] + split[None, :] * (N * HEADS), mask=every, other=float("-inf"))
    high = tl.where(live, tl.max(lse, 1), 0.0)
    total = tl.sum(tl.exp2(lse - high[:, None]), 1)

    acc = tl.zeros([BLOCK, D], tl.float32)
    for s in tl.range(0, splits):
        lse_s = tl.load(lse_ptr + at + s * (N * HEADS), mask=live, other=float("-inf"))
        seen = lse_s > float("-inf")
        place = (at + s * (N * HEADS))[:, None] * D + dim[None, :]
        acc += tl.exp2(lse_s - high)[:, None] * tl.load(partial_ptr + place, mask=seen[:, None], other=0.0)
    acc = acc / tl.where(live, total, 1.0)[:, None]
    place = (start + member // HEADS).to(tl.int64) * out_token + (member % HEADS) * out_head
    tl.store(out_ptr + place[:, None] + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=live[:, None])


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    rows: TreeRows,
    out: torch.Tensor,
    scale: float,
    scratch: AttentionScratch,
) -> None:
    """Attend every tree row to its prefix and ancestors; rows of other requests are left as they are in `out`.

    q, out:           [T, Hq, D], last dimension contiguous; the rows' own K and V are in the caches already
    k_cache, v_cache: [blocks, block_size, Hkv, D] of q's type, any strides but the last, which is 1
    block_table:      [R, M] int32
    seq_lens:         [R] int32, tokens including this step's rows; query_start_loc: [R + 1] int32
    rows:             ancestor words, and tree_len > 0 for the requests to attend. Local row i, flat position base + i,
                      sees the positions below base, and base + j for every bit j of its word
    scale:            of the scores before the softmax
    Accumulates in float32. Raises ValueError where shapes, types or the number of requests do not fit the scratch.
    """
    requests, heads, size = seq_lens.shape[0], q.shape[1], q.shape[2]
    most, max_rows, scratch_heads, scratch_size = scratch.partial.shape
    if requests > most:
        raise ValueError(f"{requests} requests; scratch is for {most} at most")
    if (heads, size, k_cache.shape[2]) != (scratch_heads, scratch_size, scratch.kv_heads):
        raise ValueError(
            f"{heads} query and {k_cache.shape[2]} KV heads of size {size}; "
            f"scratch is for {scratch_heads} and {scratch.kv_heads} of size {scratch_size}"
        )
    if k_cache.dtype != q.dtype or v_cache.dtype != q.dtype:
        types = f"caches are {k_cache.dtype} and {v_cache.dtype}, queries {q.dtype}"
        raise ValueError(f"{types}: tree attention takes one type")
    group = heads // scratch.kv_heads
    tiles, splits = scratch.layout(requests, max_rows * group)
    row_tiles = triton.cdiv(max_rows * group, tiles.queries)
    _partial_kernel[(requests, scratch.kv_heads, row_tiles * splits)](
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        query_start_loc,
        rows.tree_len,
        rows.ancestors,
        scratch.partial,
        scratch.lse,
        scale * 1.4426950408889634,  # log2(e): the softmax runs in base 2
        splits,
        *q.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_table.stride(0),
        BLOCK_SIZE=k_cache.shape[1],
        GROUP=group,
        N=max_rows,
        D=size,
        BLOCK_M=tiles.queries,
        BLOCK_N=tiles.keys,
        MIN_TILES=max(1, MIN_KEYS // tiles.keys),
        UPCAST=q.device.type == "cpu",  # Triton's interpreter multiplies the bit patterns of bfloat16
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    _combine_kernel[(requests, triton.cdiv(max_rows * heads, tiles.combined))](
        scratch.partial,
        scratch.lse,
        query_start_loc,
        rows.tree_len,
        out,
        splits,
        *out.stride()[:2],
        HEADS=heads,
        N=max_rows,
        D=size,
        BLOCK=tiles.combined,
        SPLITS=max(2, triton.next_power_of_2(scratch.splits_limit)),
        num_warps=4,
    )
