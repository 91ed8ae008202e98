"""A DFlash drafter's dimensions, and the tensors that follow from them."""

from __future__ import annotations

import re

from deployer.checkpoint.header import Header
from deployer.errors import PreflightError
from deployer.inventory.model import Section

_LAYER = re.compile(r"layers\.(\d+)\.")


class Dimensions(Section):
    """All that the shapes say. `target_layers` is how many of the target's layers feed `fc`, side by side."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    target_layers: int


def tensors(dimensions: Dimensions) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a drafter with these dimensions: 11 a layer and 3 beside them, no embedding,
    no lm_head.
    """
    d = dimensions
    query, key = d.heads * d.head_dim, d.kv_heads * d.head_dim
    layer = {
        "input_layernorm": (d.hidden,),
        "post_attention_layernorm": (d.hidden,),
        "self_attn.q_proj": (query, d.hidden),
        "self_attn.k_proj": (key, d.hidden),
        "self_attn.v_proj": (key, d.hidden),
        "self_attn.o_proj": (d.hidden, query),
        "self_attn.q_norm": (d.head_dim,),
        "self_attn.k_norm": (d.head_dim,),
        "mlp.gate_proj": (d.ffn, d.hidden),
        "mlp.up_proj": (d.ffn, d.hidden),
        "mlp.down_proj": (d.hidden, d.ffn),
    }
    beside = {"fc": (d.hidden, d.hidden * d.target_layers), "hidden_norm": (d.hidden,), "norm": (d.hidden,)}
    named = beside | {f"layers.{i}.{name}": shape for i in range(d.layers) for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in named.items()}


def measure(header: Header) -> Dimensions:
    """Reads the dimensions off the header's names and shapes.

    Raises PreflightError naming the tensor that is not there.
    """
    hidden = _shape(header, "norm.weight", 1)[0]
    head_dim = _shape(header, "layers.0.self_attn.q_norm.weight", 1)[0]
    query = _shape(header, "layers.0.self_attn.q_proj.weight", 2)[0]
    key = _shape(header, "layers.0.self_attn.k_proj.weight", 2)[0]
    indices = [int(match[1]) for name in header.tensors if (match := _LAYER.match(name))]
    return Dimensions(
        layers=max(indices) + 1,
        hidden=hidden,
        ffn=_shape(header, "layers.0.mlp.gate_proj.weight", 2)[0],
        heads=query // head_dim,
        kv_heads=key // head_dim,
        head_dim=head_dim,
        target_layers=_shape(header, "fc.weight", 2)[1] // hidden,
    )


def _shape(header: Header, name: str, rank: int) -> tuple[int, ...]:
    tensor = header.tensors.get(name)
    if tensor is None or len(tensor.shape) != rank or 0 in tensor.shape:
        found = "absent" if tensor is None else f"of shape {list(tensor.shape)}"
        raise PreflightError(
            f"not a DFlash drafter: tensor {name} is {found}",
            where=str(header.path),
            remedy="give the drafter's own checkpoint (fc, hidden_norm, norm and layers.N.*), not a target's",
        )
    return tensor.shape
