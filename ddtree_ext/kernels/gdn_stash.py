"""What a verify step keeps of every tree row, so that the accepted path can be replayed into the committed state."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GdnStash:
    """One Gated DeltaNet layer's stash, by position of the request in the batch (R) and row of its tree (N).

    Bytes per row: `dim * sizeof(x) + 4 * (HK * K + HV * V + HV)`; the recurrent state itself is not kept.
    """

    x: torch.Tensor  # [R, N, dim] raw inputs of the convolution, in the model's dtype
    k: torch.Tensor  # [R, N, HK, K] float32, normalised keys
    u: torch.Tensor  # [R, N, HV, V] float32, beta * (v - S k): what the row adds to the state along k
    g: torch.Tensor  # [R, N, HV] float32, log of the row's decay

    @staticmethod
    def allocate(
        requests: int,
        rows: int,
        dim: int,
        k_heads: int,
        v_heads: int,
        k_dim: int,
        v_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> GdnStash:
        """Zeroed buffers for `requests` trees of `rows` rows each."""
        lead = (requests, rows)
        return GdnStash(
            x=torch.zeros(*lead, dim, dtype=dtype, device=device),
            k=torch.zeros(*lead, k_heads, k_dim, dtype=torch.float32, device=device),
            u=torch.zeros(*lead, v_heads, v_dim, dtype=torch.float32, device=device),
            g=torch.zeros(*lead, v_heads, dtype=torch.float32, device=device),
        )
