"""The gated RMS norm against a float64 reference and against vLLM's own kernel: in place, its gate a slice of wider rows."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from conftest import DEVICE
from gdn_batch import POISON

from ddtree_ext.kernels.gated_norm import gated_norm

EPS = 1e-6
ULP = 2**-7  # of bfloat16, relative: Triton's interpreter cuts where hardware rounds
WIDTHS = [64, 128, 48]


@dataclass(frozen=True)
class Case:
    """x [T, HV, V] is the middle of a poisoned buffer, the gate the middle of rows that hold more."""

    buffer: torch.Tensor  # [T + 2, HV + 1, V]
    wide: torch.Tensor  # [T, HV * V + 40]
    weight: torch.Tensor
    shape: tuple[int, int, int]

    @property
    def x(self) -> torch.Tensor:
        return self.buffer[1:-1, :-1]

    @property
    def gate(self) -> torch.Tensor:
        _, heads, width = self.shape
        return self.wide[:, 24 : 24 + heads * width].unflatten(1, (heads, width))

    def exact(self, activation: str, norm_before_gate: bool) -> torch.Tensor:
        x, z, weight = self.x.double(), self.gate.double(), self.weight.double()
        act = z.sigmoid() if activation == "sigmoid" else z * z.sigmoid()
        x = x if norm_before_gate else x * act
        y = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        return y * act if norm_before_gate else y


def random_case(
    gen: torch.Generator,
    shape: tuple[int, int, int],
    dtype: torch.dtype = torch.bfloat16,
    weight_dtype: torch.dtype = torch.bfloat16,
) -> Case:
    tokens, heads, width = shape
    buffer = torch.full((tokens + 2, heads + 1, width), POISON, dtype=dtype)
    wide = (torch.randn(tokens, heads * width + 40, generator=gen) * 4).to(dtype)
    case = Case(buffer, wide, (torch.randn(width, generator=gen) + 1).to(weight_dtype), shape)
    scale = torch.logspace(-4, 3, tokens)[:, None, None]  # small rows: where eps counts
    case.x.copy_(torch.randn(shape, generator=gen) * scale)
    return case


@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
class TestFormula:
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_in_float32(
        self,
        rng: torch.Generator,
        activation: str,
        norm_before_gate: bool,
        width: int,
        weight_dtype: torch.dtype,
    ) -> None:
        case = random_case(rng, (7, 3, width), torch.float32, weight_dtype)
        exact = case.exact(activation, norm_before_gate)
        gated_norm(case.x, case.gate, case.weight, EPS, activation, norm_before_gate)
        torch.testing.assert_close(case.x.double(), exact, rtol=3e-6, atol=1e-9)

    @pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_in_bfloat16(
        self, rng: torch.Generator, activation: str, norm_before_gate: bool, weight_dtype: torch.dtype
    ) -> None:
        case = random_case(rng, (5, 6, 128), torch.bfloat16, weight_dtype)
        exact = case.exact(activation, norm_before_gate)
        gated_norm(case.x, case.gate, case.weight, EPS, activation, norm_before_gate)
        torch.testing.assert_close(case.x.double(), exact, rtol=ULP, atol=1e-9)


class TestRows:
    @pytest.mark.parametrize("shape", [(1, 1, 128), (1, 3, 64), (17, 5, 128), (33, 6, 64)], ids=str)
    @pytest.mark.parametrize("block_rows", [None, 8, 4], ids=str)
    def test_need_not_fill_the_last_block(
        self, rng: torch.Generator, shape: tuple[int, int, int], block_rows: int | None
    ) -> None:
        case = random_case(rng, shape, torch.float32)
        exact = case.exact("silu", True)
        gated_norm(case.x, case.gate, case.weight, EPS, block_rows=block_rows)
        torch.testing.assert_close(case.x.double(), exact, rtol=3e-6, atol=1e-9)

    def test_around_it_stay(self, rng: torch.Generator) -> None:
        case = random_case(rng, (6, 3, 64))
        gate = case.wide.clone()
        gated_norm(case.x[:4], case.gate[:4], case.weight, EPS)
        before, beside, after = case.buffer[:1], case.buffer[:, -1], case.buffer[-1:]
        assert all(bool((part == POISON).all()) for part in (before, beside, after))
        assert torch.equal(case.wide, gate)

    def test_beyond_the_batch_stay(self, rng: torch.Generator) -> None:
        """A padded batch is given as a slice."""
        case = random_case(rng, (6, 3, 64))
        padding = case.x[4:].clone()
        gated_norm(case.x[:4], case.gate[:4], case.weight, EPS)
        assert torch.equal(case.x[4:], padding)

    def test_of_zeros_stay_zeros(self, rng: torch.Generator) -> None:
        """Dead rows of a tree hold zeros."""
        case = random_case(rng, (3, 2, 64))
        case.x[1].zero_()
        gated_norm(case.x, case.gate, case.weight, EPS)
        assert bool((case.x[1] == 0).all())

    def test_may_be_none(self, rng: torch.Generator) -> None:
        case = random_case(rng, (1, 2, 64))
        before = case.buffer.clone()
        gated_norm(case.x[:0], case.gate[:0], case.weight, EPS)
        assert torch.equal(case.buffer, before)


class TestRefusals:
    def test_of_another_activation(self, rng: torch.Generator) -> None:
        case = random_case(rng, (2, 2, 64))
        with pytest.raises(ValueError, match="activation 'gelu' is none of silu, swish, sigmoid"):
            gated_norm(case.x, case.gate, case.weight, EPS, "gelu")

    def test_of_heads_that_lie_apart(self, rng: torch.Generator) -> None:
        case = random_case(rng, (2, 2, 64))
        with pytest.raises(ValueError, match="only the token stride"):
            gated_norm(case.x, case.gate.transpose(0, 1), case.weight, EPS)

    def test_of_another_shape(self, rng: torch.Generator) -> None:
        case = random_case(rng, (2, 2, 64))
        with pytest.raises(ValueError, match=r"gate \(1, 2, 64\)"):
            gated_norm(case.x, case.gate[:1], case.weight, EPS)


@pytest.mark.engine
@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_equals_stock(
    rng: torch.Generator, activation: str, norm_before_gate: bool, width: int, weight_dtype: torch.dtype
) -> None:
    """vLLM's layer_norm_fwd as its Gated DeltaNet layer calls it: bit for bit where both are interpreted."""
    from vllm.third_party.flash_linear_attention.ops import layernorm_guard

    case = random_case(rng, (9, 3, width), torch.bfloat16, weight_dtype)
    x, z = (t.reshape(-1, width) for t in (case.x.clone(), case.gate))
    with mock.patch.object(layernorm_guard, "num_compute_units", return_value=132):
        layernorm_guard.layer_norm_fwd(
            x,
            case.weight,
            None,
            EPS,
            z=z,
            out=x,
            group_size=width,
            norm_before_gate=norm_before_gate,
            is_rms_norm=True,
            activation=activation,
        )
    gated_norm(case.x, case.gate, case.weight, EPS, activation, norm_before_gate)
    if DEVICE == "cpu":
        assert torch.equal(case.x, x.view(case.shape))
    else:
        torch.testing.assert_close(case.x, x.view(case.shape), rtol=2 * ULP, atol=1e-6)
