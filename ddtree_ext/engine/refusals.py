"""Options of vLLM that tree speculation cannot honour: refused at start, by name, instead of being wrong later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddtree_ext.engine.options import OptionError


def refuse_unsupported(vllm_config: Any) -> None:
    """Raises OptionError naming every option that the tree cannot honour."""
    reasons = list(_unsupported(vllm_config))
    if reasons:
        raise OptionError(
            "ddtree cannot serve with these options:\n" + "\n".join(f"  - {reason}" for reason in reasons)
        )


def _unsupported(config: Any) -> Iterator[str]:
    if not config.use_v2_model_runner:
        yield "the V1 model runner: unset VLLM_USE_V2_MODEL_RUNNER=0"
    yield from _speculation(config.speculative_config)
    yield from _parallelism(config.parallel_config)
    backend = config.attention_config.backend
    if backend is None or backend.name != "CUSTOM":
        yield f"--attention-backend {backend.name if backend else 'left out'}: the tree's attention is --attention-backend CUSTOM"
    if config.lora_config is not None:
        yield "LoRA adapters (--enable-lora)"
    if config.watermark_config is not None:
        yield "watermarking (--watermark-config)"
    if config.model_config.is_hybrid and config.cache_config.mamba_cache_mode != "none":
        yield "prefix caching of a hybrid model: pass --no-enable-prefix-caching"
    if config.cache_config.cache_dtype not in ("auto", "bfloat16", "float16"):
        yield f"a quantized KV cache (--kv-cache-dtype {config.cache_config.cache_dtype})"
    if config.model_config.is_hybrid and config.cache_config.mamba_ssm_cache_dtype not in ("auto", "float32"):
        yield f"--mamba-ssm-cache-dtype {config.cache_config.mamba_ssm_cache_dtype}: the tree's states are float32"
    if config.cache_config.kv_sharing_fast_prefill:
        yield "--kv-sharing-fast-prefill"
    if config.kv_transfer_config is not None:
        yield "KV transfer (--kv-transfer-config)"
    model = config.model_config
    if model.enable_trace_replay:
        yield "trace replay"
    if model.return_sampling_mask:
        yield "sampling masks in the output"


def _speculation(spec: Any) -> Iterator[str]:
    if spec is None:
        yield "no speculative decoding: pass --speculative-config with method dflash"
        return
    if spec.method != "dflash" or "DFlashDraftModel" not in spec.draft_model_config.architectures:
        yield f"speculative method {spec.method} with {spec.draft_model_config.architectures}: only dflash with a DFlashDraftModel"
    if spec.attention_backend is not None and spec.attention_backend.name == "CUSTOM":
        yield "attention_backend CUSTOM in the speculative config: the tree's attention is the target's, a drafter has its own"
    if spec.draft_sample_method == "probabilistic":
        yield "draft_sample_method probabilistic: the tree is lossless with greedy drafts at any temperature"
    if spec.rejection_sample_method not in ("standard", "block"):
        yield f"rejection_sample_method {spec.rejection_sample_method}"
    if spec.enable_adaptive_verification:
        yield "enable_adaptive_verification"


def _parallelism(parallel: Any) -> Iterator[str]:
    if parallel.data_parallel_size > 1:
        yield f"--data-parallel-size {parallel.data_parallel_size}: serve the copies side by side, behind a router"
    if parallel._api_process_count > 1:
        yield f"--api-server-count {parallel._api_process_count}: the tree's counters would not be on /metrics"
    if parallel.enable_expert_parallel:
        yield "--enable-expert-parallel"
    if parallel.pipeline_parallel_size > 1:
        yield f"--pipeline-parallel-size {parallel.pipeline_parallel_size}"
    if parallel.prefill_context_parallel_size > 1 or parallel.decode_context_parallel_size > 1:
        yield "context parallelism"
    if parallel.enable_batch_sharded_sampling:
        yield "--enable-batch-sharded-sampling"
    if parallel.use_ubatching:
        yield "dual batch overlap (microbatching)"
