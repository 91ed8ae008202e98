"""What the tree cannot honour ends the start with a message that names it; a configuration that it can honour passes."""

from __future__ import annotations

import importlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddtree_ext.engine import activation
from ddtree_ext.engine.attention import TreeAttentionMixin, refuse_attention
from ddtree_ext.engine.compat import CompatibilityError
from ddtree_ext.engine.hooks import HOOKS
from ddtree_ext.engine.options import MAX_BUDGET, DDTreeOptions, OptionError, drafter_width, node_budget
from ddtree_ext.engine.refusals import refuse_unsupported
from ddtree_ext.engine.registration import register_attention_backend

WIDTH = 15


def honoured() -> SimpleNamespace:
    """A configuration of vLLM, as far as the checks read it, that has nothing to refuse."""
    return SimpleNamespace(
        use_v2_model_runner=True,
        additional_config={"ddtree": {"topk": 8}},
        speculative_config=SimpleNamespace(
            method="dflash",
            draft_model_config=SimpleNamespace(
                architectures=["DFlashDraftModel"], hf_config=SimpleNamespace(block_size=WIDTH + 1)
            ),
            attention_backend=None,
            draft_sample_method="greedy",
            rejection_sample_method="standard",
            enable_adaptive_verification=False,
            num_speculative_tokens=31,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1,
            _api_process_count=1,
            enable_expert_parallel=False,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            enable_batch_sharded_sampling=False,
            use_ubatching=False,
        ),
        attention_config=SimpleNamespace(backend=SimpleNamespace(name="CUSTOM")),
        lora_config=None,
        watermark_config=None,
        kv_transfer_config=None,
        model_config=SimpleNamespace(is_hybrid=True, enable_trace_replay=False, return_sampling_mask=False),
        cache_config=SimpleNamespace(
            mamba_cache_mode="none", cache_dtype="auto", mamba_ssm_cache_dtype="auto", kv_sharing_fast_prefill=False
        ),
    )


def but(**changed: Any) -> SimpleNamespace:
    """That configuration with other values; `a__b` is b of a."""
    config = honoured()
    for name, value in changed.items():
        *parts, last = name.split("__")
        part = config
        for inner in parts:
            part = getattr(part, inner)
        setattr(part, last, value)
    return config


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_v2_model_runner": False}, "the V1 model runner: unset VLLM_USE_V2_MODEL_RUNNER=0"),
    ({"speculative_config": None}, "no speculative decoding: pass --speculative-config with method dflash"),
    ({"speculative_config__method": "eagle3"}, "speculative method eagle3"),
    ({"speculative_config__draft_model_config__architectures": ["Qwen3ForCausalLM"]}, "only dflash with a DFlashDraft"),
    ({"speculative_config__draft_sample_method": "probabilistic"}, "draft_sample_method probabilistic"),
    ({"speculative_config__rejection_sample_method": "synthetic"}, "rejection_sample_method synthetic"),
    ({"speculative_config__enable_adaptive_verification": True}, "enable_adaptive_verification"),
    ({"speculative_config__attention_backend": SimpleNamespace(name="CUSTOM")}, "the tree's attention is the target's"),
    ({"parallel_config__data_parallel_size": 2}, "--data-parallel-size 2: serve the copies side by side"),
    ({"parallel_config___api_process_count": 2}, "--api-server-count 2: the tree's counters"),
    ({"cache_config__mamba_ssm_cache_dtype": "bfloat16"}, "--mamba-ssm-cache-dtype bfloat16"),
    ({"parallel_config__enable_expert_parallel": True}, "--enable-expert-parallel"),
    ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
    ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
    ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
    ({"parallel_config__enable_batch_sharded_sampling": True}, "--enable-batch-sharded-sampling"),
    ({"parallel_config__use_ubatching": True}, "dual batch overlap"),
    ({"attention_config__backend": None}, "--attention-backend left out: the tree's attention is"),
    ({"attention_config__backend": SimpleNamespace(name="FLASH_ATTN")}, "--attention-backend FLASH_ATTN: the tree's"),
    ({"lora_config": object()}, "LoRA adapters"),
    ({"watermark_config": object()}, "watermarking"),
    ({"cache_config__mamba_cache_mode": "align"}, "prefix caching of a hybrid model: pass --no-enable-prefix-caching"),
    ({"cache_config__cache_dtype": "fp8"}, "a quantized KV cache (--kv-cache-dtype fp8)"),
    ({"cache_config__kv_sharing_fast_prefill": True}, "--kv-sharing-fast-prefill"),
    ({"kv_transfer_config": object()}, "KV transfer"),
    ({"model_config__enable_trace_replay": True}, "trace replay"),
    ({"model_config__return_sampling_mask": True}, "sampling masks in the output"),
]


def reasons(config: SimpleNamespace) -> list[str]:
    with pytest.raises(OptionError) as refused:
        refuse_unsupported(config)
    first, *lines = str(refused.value).splitlines()
    assert first == "ddtree cannot serve with these options:"
    return lines


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_an_option_that_cannot_be_honoured_is_named_alone(changed: dict[str, Any], message: str) -> None:
    (line,) = reasons(but(**changed))
    assert line.startswith("  - ")
    assert message in line


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"speculative_config__rejection_sample_method": "block"},
        {"speculative_config__attention_backend": SimpleNamespace(name="FLASH_ATTN")},
        {"cache_config__mamba_ssm_cache_dtype": "float32"},
        {"cache_config__cache_dtype": "bfloat16"},
        {"cache_config__cache_dtype": "float16"},
        {"model_config__is_hybrid": False, "cache_config__mamba_cache_mode": "align"},
        {"model_config__is_hybrid": False, "cache_config__mamba_ssm_cache_dtype": "bfloat16"},
    ],
)
def test_what_can_be_honoured_passes(changed: dict[str, Any]) -> None:
    refuse_unsupported(but(**changed))


def test_all_reasons_come_at_once() -> None:
    config = but(lora_config=object(), parallel_config__pipeline_parallel_size=2, use_v2_model_runner=False)
    assert len(reasons(config)) == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"use_v2_model_runner": False}, "V1 model runner"),
        ({"additional_config": {"ddtree": {"topk": 0}}}, "topk"),
        ({"speculative_config__num_speculative_tokens": 1}, "num_speculative_tokens"),
    ],
)
def test_a_worker_refuses_before_it_replaces_anything(
    changed: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[str] = []
    monkeypatch.setattr(activation, "_register_gdn_layer", lambda: replaced.append("layer"))
    monkeypatch.setattr(activation, "_register_target", lambda config: replaced.append("target"))
    with pytest.raises(OptionError, match=message):
        activation.activate(but(**changed))
    assert replaced == []
    activation.activate(honoured())
    assert replaced == ["layer", "target"]


def test_a_worker_refuses_a_vllm_whose_hooks_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "_register_gdn_layer", lambda: pytest.fail("nothing is replaced"))
    monkeypatch.setitem(HOOKS, "vllm.v1.worker.gpu.input_batch:post_update", "0" * 16)
    with pytest.raises(CompatibilityError, match="post_update"):
        activation.activate(honoured())


def test_no_process_names_the_trees_attention_under_another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.33.1")
    monkeypatch.setattr(
        "vllm.v1.attention.backends.registry.register_backend", lambda *_: pytest.fail("nothing is registered")
    )
    with pytest.raises(CompatibilityError, match=r"this is 0\.33\.1"):
        register_attention_backend()


@pytest.mark.parametrize(
    ("module", "worker", "begins"),
    [("worker", "DDTreeWorker", "_make_model_runner"), ("cpu_worker", "DDTreeCPUWorker", "init_device")],
)
def test_every_worker_of_ours_checks_before_it_makes_anything(
    module: str, worker: str, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.import_module(f"ddtree_ext.engine.{module}")

    def refuse(config: object) -> None:
        assert config == "its configuration"
        raise OptionError("refused")

    monkeypatch.setattr(found, "activate", refuse)
    made = object.__new__(getattr(found, worker))
    made.vllm_config = "its configuration"
    with pytest.raises(OptionError, match="refused"):
        getattr(made, begins)()


def test_the_trees_attention_under_a_worker_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would serve stock's chains, and nobody would notice."""
    monkeypatch.setattr(activation, "_activated", threading.Event())
    with pytest.raises(OptionError, match="this worker is not the tree's: pass --worker-cls"):
        TreeAttentionMixin()
    for name in ("_register_gdn_layer", "_register_target"):
        monkeypatch.setattr(activation, name, lambda *_: None)
    activation.activate(honoured())
    activation.require_activated()


@pytest.mark.parametrize(
    ("additional", "topk"),
    [(None, 16), ({}, 16), ({"ddtree": {}}, 16), ({"ddtree": {"topk": 1}}, 1), ({"ddtree": {"topk": 63}, "x": 1}, 63)],
)
def test_the_trees_own_options(additional: Any, topk: int) -> None:
    assert DDTreeOptions.from_config(but(additional_config=additional)) == DDTreeOptions(topk)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([4], r'additional_config\["ddtree"\] must be a mapping, got \[4\]'),
        ({"topK": 4, "budget": 9}, "has no option budget, topK; known are topk"),
        *(({"topk": wrong}, "must be 1 to 63, got") for wrong in (0, 64, "8", 8.0, True, None)),
    ],
)
def test_own_options_that_are_unknown_or_wrong(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DDTreeOptions.from_config(but(additional_config={"ddtree": given}))


@pytest.mark.parametrize("key", ["ddtre", "DDTree", "dd_tree", "ddtrees"])
def test_a_misspelt_key_of_the_options_is_named(key: str) -> None:
    with pytest.raises(OptionError, match=f"additional_config has '{key}', which nothing reads"):
        DDTreeOptions.from_config(but(additional_config={key: {"topk": 4}}))


def test_a_drafter_wider_than_the_largest_tree_is_named() -> None:
    config = but(
        speculative_config__draft_model_config__hf_config=SimpleNamespace(block_size=MAX_BUDGET + 2),
        speculative_config__num_speculative_tokens=MAX_BUDGET,
    )
    with pytest.raises(OptionError, match="predicts 64 tokens in one pass, and a tree has at most 63 nodes"):
        node_budget(config)


def test_the_drafters_width_is_its_checkpoints() -> None:
    for tokens in (WIDTH, 63):
        assert drafter_width(but(speculative_config__num_speculative_tokens=tokens)) == WIDTH


@pytest.mark.parametrize("checkpoint", [{}, {"block_size": None}, {"block_size": "16"}, {"block_size": 1}])
def test_a_drafter_without_a_usable_block_size(checkpoint: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="no usable block_size"):
        drafter_width(but(speculative_config__draft_model_config__hf_config=SimpleNamespace(**checkpoint)))


@pytest.mark.parametrize("budget", [WIDTH, 31, MAX_BUDGET])
def test_the_node_budget_is_num_speculative_tokens(budget: int) -> None:
    assert node_budget(but(speculative_config__num_speculative_tokens=budget)) == budget


@pytest.mark.parametrize("budget", [0, WIDTH - 1, MAX_BUDGET + 1])
def test_a_budget_below_the_width_or_beyond_one_word(budget: int) -> None:
    with pytest.raises(OptionError, match=f"must be {WIDTH} .the drafter's width. to {MAX_BUDGET}, got {budget}"):
        node_budget(but(speculative_config__num_speculative_tokens=budget))


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"sliding_window": 512}, "sliding-window attention .window 512"),
        ({"sliding_window": (511, 0)}, "sliding-window attention"),
        ({"alibi_slopes": torch.ones(2)}, "alibi slopes"),
        ({"sinks": torch.ones(2)}, "sinks"),
        ({"logits_soft_cap": 30.0}, "soft cap"),
    ],
)
def test_attention_that_the_kernel_does_not_compute(variant: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        refuse_attention(SimpleNamespace(**({"sliding_window": None} | variant)))


@pytest.mark.parametrize("window", [None, -1, (-1, -1)])
def test_attention_over_everything_passes(window: Any) -> None:
    refuse_attention(SimpleNamespace(sliding_window=window, alibi_slopes=None, sinks=None, logits_soft_cap=0))
