"""A Gated DeltaNet layer over one tree in plain torch: what the kernels in `kernels/gdn_*.py` have to compute.

One request at a time, row by row, in the dtype of the arguments: give float64 for an oracle. Parents are local rows, -1
for the root. Convention and order of operations: vLLM 0.32.0, `fused_sigmoid_gating_delta_rule_update`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def convolve_tree(
    x: torch.Tensor, window: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, parents: Sequence[int]
) -> torch.Tensor:
    """SiLU of the causal depthwise convolution along every row's root path.

    x [n, dim]; window [dim, width - 1], the committed inputs before the root, oldest first; weight [dim, width];
    bias [dim] or None. Returns [n, dim].
    """
    width = weight.shape[1]
    out = torch.empty_like(x)
    for row in range(x.shape[0]):
        inputs = torch.cat([window, x[root_path(parents, row)].T], dim=1)[:, -width:]
        total = (inputs * weight).sum(1)
        out[row] = torch.nn.functional.silu(total if bias is None else total + bias)
    return out


def root_path(parents: Sequence[int], row: int) -> list[int]:
    """Rows from the root to `row`, both included."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def shift_window(window: torch.Tensor, x: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
    """The window [dim, width - 1] after the rows `path` of x [n, dim] are committed behind it."""
    return torch.cat([window, x[list(path)].T], dim=1)[:, -window.shape[1] :]


@dataclass(frozen=True)
class ScanResult:
    """Per row of the tree (n rows): outputs [n, HV, V], states [n, HV, V, K], and what a replay needs."""

    out: torch.Tensor
    states: torch.Tensor
    k: torch.Tensor  # [n, HK, K] normalised
    u: torch.Tensor  # [n, HV, V]
    g: torch.Tensor  # [n, HV]


def scan_tree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    parents: Sequence[int],
) -> ScanResult:
    """Gated delta rule along every row's root path.

    q, k [n, HK, K]; v [n, HV, V]; a, b [n, HV]; A_log, dt_bias [HV]; state [HV, V, K], the committed one.
    """
    group = v.shape[1] // k.shape[1]
    g = -A_log.exp() * torch.nn.functional.softplus(a + dt_bias, beta=1.0, threshold=20.0)
    beta = torch.sigmoid(b)
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * k.shape[-1] ** -0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    states: list[torch.Tensor] = []
    outs: list[torch.Tensor] = []
    updates: list[torch.Tensor] = []
    for row, parent in enumerate(parents):
        # [HV, K]: V-head h uses K-head h // group
        k_row, q_row = k[row].repeat_interleave(group, dim=0), q[row].repeat_interleave(group, dim=0)
        current = (state if parent < 0 else states[parent]) * g[row].exp()[:, None, None]
        u = beta[row][:, None] * (v[row] - torch.einsum("hvk,hk->hv", current, k_row))
        current = current + u[:, :, None] * k_row[:, None, :]
        states.append(current)
        updates.append(u)
        outs.append(torch.einsum("hvk,hk->hv", current, q_row))
    return ScanResult(out=torch.stack(outs), states=torch.stack(states), k=k, u=torch.stack(updates), g=g)
