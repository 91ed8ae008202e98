"""Buffers of the Gated DeltaNet kernels: what every tree row leaves for the commit, and what one verification works in."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GdnShape:
    """One rank's part of a Gated DeltaNet layer."""

    k_heads: int  # HK, heads of q and k
    v_heads: int  # HV, a multiple of HK
    k_dim: int  # K
    v_dim: int  # V

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim


@dataclass(frozen=True)
class GdnStash:
    """What the commit needs of a tree's rows, one per layer; by position of the request in the batch (R) and row (N).

    Bytes per row: `conv_dim * sizeof(x) + 4 * (HK * K + HV * V + HV)`; no recurrent state among them.
    """

    x: torch.Tensor  # [R, N, conv_dim] raw inputs of the convolution, in the model's dtype
    k: torch.Tensor  # [R, N, HK, K] float32, normalised keys
    u: torch.Tensor  # [R, N, HV, V] float32, beta * (v - S k): what the row adds to the state along k
    decay: torch.Tensor  # [R, N, HV] float32, e^g: what the row scales its parent's state with

    @property
    def shape(self) -> GdnShape:
        """Of the layer that it was allocated for."""
        _, _, k_heads, k_dim = self.k.shape
        _, _, v_heads, v_dim = self.u.shape
        return GdnShape(k_heads, v_heads, k_dim, v_dim)

    @classmethod
    def allocate(
        cls, requests: int, rows: int, shape: GdnShape, dtype: torch.dtype, device: torch.device | str
    ) -> GdnStash:
        """Zeroed buffers for `requests` trees of `rows` rows each; `dtype` is the model's."""
        lead = (requests, rows)
        return cls(
            x=torch.zeros(*lead, shape.conv_dim, dtype=dtype, device=device),
            k=torch.zeros(*lead, shape.k_heads, shape.k_dim, dtype=torch.float32, device=device),
            u=torch.zeros(*lead, shape.v_heads, shape.v_dim, dtype=torch.float32, device=device),
            decay=torch.zeros(*lead, shape.v_heads, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True)
class GdnScratch:
    """What one verification works in, float32; all layers share one, since they run one after the other."""

    q: torch.Tensor  # [R, N, HK, K], normalised and scaled queries
    solve: torch.Tensor  # [R, HV, T, T], (I + A)^-1: from beta (v - fade S_0 k) to u; T >= N a power of two, >= 16
    mix: torch.Tensor  # [R, HV, T, T], what a row's output takes of the u of its ancestors and its own
    beta: torch.Tensor  # [R, N, HV]
    fade: torch.Tensor  # [R, N, HV], what is left of the committed state at a row

    @classmethod
    def allocate(cls, requests: int, rows: int, shape: GdnShape, device: torch.device | str) -> GdnScratch:
        """Uninitialised buffers for `requests` trees of `rows` rows each."""
        options = {"dtype": torch.float32, "device": device}
        side = max(16, 1 << (rows - 1).bit_length())
        square = (requests, shape.v_heads, side, side)
        return cls(
            q=torch.empty(requests, rows, shape.k_heads, shape.k_dim, **options),
            solve=torch.empty(*square, **options),
            mix=torch.empty(*square, **options),
            beta=torch.empty(requests, rows, shape.v_heads, **options),
            fade=torch.empty(requests, rows, shape.v_heads, **options),
        )
