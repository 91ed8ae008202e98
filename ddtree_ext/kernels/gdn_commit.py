"""Commits the accepted path of every tree to the states and convolution windows of all layers, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ddtree_ext.kernels.gdn_stash import GdnStash
from ddtree_ext.kernels.gdn_tiles import GdnTiles

_TRITON_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@dataclass(frozen=True)
class GdnLayer:
    """One layer's caches and stash.

    ssm_state [slots, HV, V, K] float32 and conv_state [slots, dim, >= width - 1], both with any strides; `group` is the
    row of `state_indices` that names this layer's slots (layers of different cache groups have their own block tables).
    """

    ssm_state: torch.Tensor
    conv_state: torch.Tensor
    stash: GdnStash
    group: int = 0

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order of a row of the kernel's table of addresses."""
        stash = self.stash
        return self.ssm_state, self.conv_state, stash.x, stash.k, stash.u, stash.decay

    @property
    def form(self) -> tuple[object, ...]:
        """What has to be the same in all layers of one launch: shapes without the slots, strides, dtypes."""
        return tuple((t.shape[1:], t.stride(), t.dtype, t.device) for t in self.tensors)


@dataclass(frozen=True)
class CommitTable:
    """Addresses of all layers' tensors, for the kernel. It holds the layers too: so the addresses stay valid."""

    layers: tuple[GdnLayer, ...]
    pointers: torch.Tensor  # [L, 6] int64: ssm_state, conv_state, stash x, k, u, decay
    groups: torch.Tensor  # [L] int32
    width: int
    align: int  # bytes that the addresses of all states and of their stashes' k, u and decay divide by: 16, or 4

    @staticmethod
    def of(layers: Sequence[GdnLayer], width: int) -> CommitTable:
        """Table of `layers` (at least one) with convolutions of `width` taps."""
        first = layers[0]
        for number, layer in enumerate(layers):
            if layer.form != first.form:
                raise ValueError(f"GDN layer {number} is not of layer 0's form: {layer.form}, expected {first.form}")
        if first.ssm_state.dtype != torch.float32:
            raise ValueError(
                f"the recurrent state is {first.ssm_state.dtype}, not float32: set --mamba-ssm-cache-dtype float32"
            )
        stash = first.stash
        if not all(t.is_contiguous() for t in (stash.x, stash.k, stash.u, stash.decay)):
            raise ValueError("the stash of a GDN layer must be contiguous")
        addresses = [[t.data_ptr() for t in layer.tensors] for layer in layers]
        device = first.ssm_state.device
        return CommitTable(
            layers=tuple(layers),
            pointers=torch.tensor(addresses, dtype=torch.int64, device=device),
            groups=torch.tensor([layer.group for layer in layers], dtype=torch.int32, device=device),
            width=width,
            align=4 if any(row[column] % 16 for row in addresses for column in (0, 3, 4, 5)) else 16,
        )


@triton.jit  # type: ignore[untyped-decorator]
def float_tensor(pointers: tl.tensor, column: tl.constexpr, ALIGN: tl.constexpr) -> tl.tensor:
    """Of a row of the table. Four numbers at a time are moved only where the compiler is told what an address divides by."""
    return tl.multiple_of(tl.load(pointers + column).to(tl.pointer_type(tl.float32)), ALIGN)


@triton.jit  # type: ignore[untyped-decorator]
def replay_state(
    state_ptr: tl.tensor,
    stash_k: tl.tensor,
    stash_u: tl.tensor,
    stash_decay: tl.tensor,
    block: tl.tensor,
    slot: tl.tensor,
    request: tl.tensor,
    path: tl.tensor,
    consumed: tl.tensor,
    state_slot: tl.tensor,
    state_head: tl.tensor,
    state_v: tl.tensor,
    state_k: tl.tensor,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BH: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    TOGETHER: tl.constexpr,
    BACKWARD: tl.constexpr,
    STREAM: tl.constexpr,
) -> None:
    """`S = decay S + u k^T` along the path, for BH V-heads x BV rows of the state, which stay in registers.

    BACKWARD: its closed form, from the path's end, `left` being what is left of a row's u k^T at the end. It takes half the
    operations of a row, and needs the state only after the last.
    """
    v_blocks: tl.constexpr = (V + BV - 1) // BV
    head = (block // v_blocks) * BH + tl.arange(0, BH)
    in_v = (block % v_blocks) * BV + tl.arange(0, BV)
    in_k = tl.arange(0, BK)
    head_mask = head < HV
    k_mask = head_mask[:, None] & (in_k < K)[None, :]
    v_mask = head_mask[:, None] & (in_v < V)[None, :]
    mask = v_mask[:, :, None] & (in_k < K)[None, None, :]
    k_at = (head // (HV // HK))[:, None] * K + in_k[None, :]
    v_at = head[:, None] * V + in_v[None, :]
    at = slot * state_slot + head[:, None, None] * state_head + in_v[None, :, None] * state_v
    state_at = state_ptr + at + in_k[None, None, :] * state_k
    policy: tl.constexpr = "evict_first" if STREAM else ""
    state = tl.load(state_at, mask=mask, other=0.0, eviction_policy=policy)
    # Zeros that are laid out as the state is, or all sums would cross shared memory at the end: a load that never happens.
    added = tl.load(state_at, mask=mask & (head + consumed < 0)[:, None, None], other=0.0)
    left = tl.full([BH], 1.0, tl.float32)
    for first in tl.range(0, consumed, TOGETHER):
        for i in tl.static_range(TOGETHER):
            # Beyond the path, its last row is loaded again and changes nothing: 1 S + 0 k^T. So the loads need not wait.
            place = tl.minimum(first + i, consumed - 1) if TOGETHER > 1 else first
            kept = request * N + tl.load(path + (consumed - 1 - place if BACKWARD else place))
            k = tl.load(stash_k + kept * (HK * K) + k_at, mask=k_mask, other=0.0)
            u = tl.load(stash_u + kept * (HV * V) + v_at, mask=v_mask, other=0.0)
            decay = tl.load(stash_decay + kept * HV + head, mask=head_mask, other=0.0)
            if TOGETHER > 1:
                u = tl.where(first + i < consumed, u, 0.0)
                decay = tl.where(first + i < consumed, decay, 1.0)
            if BACKWARD:
                added = tl.fma((left[:, None] * u)[:, :, None], k[:, None, :], added)
                left *= decay
            else:
                state = tl.fma(u[:, :, None], k[:, None, :], state * decay[:, None, None])
    if BACKWARD:
        state = tl.fma(state, left[:, None, None], added)
    tl.store(state_at, state, mask=mask, eviction_policy=policy)


@triton.jit  # type: ignore[untyped-decorator]
def shift_window(
    pointers: tl.tensor,
    block: tl.tensor,
    slot: tl.tensor,
    request: tl.tensor,
    path: tl.tensor,
    consumed: tl.tensor,
    window_slot: tl.tensor,
    window_dim: tl.tensor,
    window_col: tl.tensor,
    dim: tl.tensor,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW_DTYPE: tl.constexpr,
    STASH_DTYPE: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
) -> None:
    """The last WIDTH - 1 of (old window ++ inputs along the path), for BD features."""
    window_ptr = tl.load(pointers + 1).to(tl.pointer_type(WINDOW_DTYPE))
    stash_x = tl.load(pointers + 2).to(tl.pointer_type(STASH_DTYPE))
    feature = block * BD + tl.arange(0, BD)
    column = tl.arange(0, BC)
    window_at = window_ptr + slot * window_slot + (feature * window_dim)[None, :]
    mask = (column < WIDTH - 1)[:, None] & (feature < dim)[None, :]
    source = consumed + column  # in the old window, and behind it in the path
    old = tl.load(window_at + source[:, None] * window_col, mask=mask & (source < WIDTH - 1)[:, None], other=0.0)
    accepted = (column < WIDTH - 1) & (source >= WIDTH - 1)
    node = tl.load(path + source - (WIDTH - 1), mask=accepted, other=0)
    drafted_at = stash_x + (request * N + node)[:, None] * dim + feature[None, :]
    drafted = tl.load(drafted_at, mask=mask & accepted[:, None], other=0.0)
    value = tl.where(accepted[:, None], drafted.to(WINDOW_DTYPE), old)
    tl.debug_barrier()  # all columns are read before the first is overwritten
    tl.store(window_at + column[:, None] * window_col, value, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def commit_tree_kernel(
    pointers_ptr: tl.tensor,
    groups_ptr: tl.tensor,
    state_indices_ptr: tl.tensor,
    state_indices_group: tl.tensor,
    num_sampled_ptr: tl.tensor,
    path_ptr: tl.tensor,
    path_row: tl.tensor,
    is_tree_ptr: tl.tensor,
    state_slot: tl.tensor,
    state_head: tl.tensor,
    state_v: tl.tensor,
    state_k: tl.tensor,
    window_slot: tl.tensor,
    window_dim: tl.tensor,
    window_col: tl.tensor,
    dim: tl.tensor,
    WINDOW_DTYPE: tl.constexpr,
    STASH_DTYPE: tl.constexpr,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    STATE_BLOCKS: tl.constexpr,
    BH: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
    TOGETHER: tl.constexpr,
    BACKWARD: tl.constexpr,
    STREAM: tl.constexpr,
    ALIGN: tl.constexpr,
) -> None:
    """One program: a block of one request's state, or of its window, in one layer. Grid (R, L, all blocks)."""
    request = tl.program_id(0)
    layer = tl.program_id(1)
    block = tl.program_id(2)
    consumed = tl.load(num_sampled_ptr + request)
    group = tl.load(groups_ptr + layer)
    slot = tl.load(state_indices_ptr + group * state_indices_group + request).to(tl.int64)
    pointers = pointers_ptr + layer * 6
    # Addresses are read beside the slot, not after it: every load that waits for another is as long as a part of the state.
    state_ptr, stash_k = float_tensor(pointers, 0, ALIGN), float_tensor(pointers, 3, ALIGN)
    stash_u, stash_decay = float_tensor(pointers, 4, ALIGN), float_tensor(pointers, 5, ALIGN)
    if (tl.load(is_tree_ptr + request) == 0) | (slot <= 0) | (consumed <= 0):
        return
    path = path_ptr + request * path_row
    position = request.to(tl.int64)
    if block < STATE_BLOCKS:
        replay_state(
            state_ptr, stash_k, stash_u, stash_decay, block, slot, position, path, consumed,
            state_slot, state_head, state_v, state_k, N, HK, HV, K, V, BH, BV, BK, TOGETHER, BACKWARD, STREAM,
        )  # fmt: skip
    else:
        shift_window(
            pointers, block - STATE_BLOCKS, slot, position, path, consumed, window_slot, window_dim, window_col, dim,
            N, WIDTH, WINDOW_DTYPE, STASH_DTYPE, BC, BD,
        )  # fmt: skip


def commit_tree(
    table: CommitTable,
    state_indices: torch.Tensor,
    num_sampled: torch.Tensor,
    path: torch.Tensor,
    is_tree: torch.Tensor,
    tiles: GdnTiles | None = None,
) -> None:
    """Replays the rows path[r, :num_sampled[r]] of every tree into the committed state and window of every layer.

    state_indices [R], or [G, R] for layers in G cache groups (a slot <= 0 is a null block or padding: skipped);
    num_sampled [R] int32, accepted nodes + 1 (the root is always consumed); path [R, >= N] int32, path[:, 0] = 0;
    is_tree [R] int32: requests with 0 are left alone. Of the stash, the accepted rows are read and no others; each state
    is read once and written once. `tiles` None: the device's.
    """
    layer = table.layers[0]
    _, v_heads, v_dim, k_dim = layer.ssm_state.shape
    _, tree_rows, dim = layer.stash.x.shape
    indices = state_indices if state_indices.dim() == 2 else state_indices[None]
    tiles = tiles or GdnTiles.of(indices.device, layer.stash.shape, tree_rows)
    # On a CPU the kernel is interpreted: an operation costs the same for a large tile as for a small one.
    block_dim = triton.next_power_of_2(dim) if indices.device.type == "cpu" else 512
    state_blocks = triton.cdiv(v_heads, tiles.commit_heads) * triton.cdiv(v_dim, tiles.commit_v)
    grid = (indices.shape[1], len(table.layers), state_blocks + triton.cdiv(dim, block_dim))
    commit_tree_kernel[grid](
        table.pointers,
        table.groups,
        indices,
        indices.stride(0),
        num_sampled,
        path,
        path.stride(0),
        is_tree,
        *layer.ssm_state.stride(),
        *layer.conv_state.stride(),
        dim,
        WINDOW_DTYPE=_TRITON_DTYPES[layer.conv_state.dtype],
        STASH_DTYPE=_TRITON_DTYPES[layer.stash.x.dtype],
        WIDTH=table.width,
        N=tree_rows,
        HK=layer.stash.k.shape[2],
        HV=v_heads,
        K=k_dim,
        V=v_dim,
        STATE_BLOCKS=state_blocks,
        BH=tiles.commit_heads,
        BV=tiles.commit_v,
        BK=triton.next_power_of_2(k_dim),
        BC=triton.next_power_of_2(table.width - 1),
        BD=block_dim,
        TOGETHER=tiles.commit_rows,
        BACKWARD=tiles.commit_backward,
        STREAM=tiles.commit_stream,
        ALIGN=min(table.align, 4 * tiles.commit_vector),
        num_warps=tiles.commit_warps,
    )
