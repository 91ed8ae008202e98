"""Switches the tree on in a worker: checks, then the target's layer and model state are replaced by ours.

Only a worker of ours calls this, so a server without it, on the same installation, is stock.
"""

from __future__ import annotations

import threading
from typing import Any

from ddtree_ext.engine.compat import check_hooks
from ddtree_ext.engine.options import DDTreeOptions, OptionError, node_budget
from ddtree_ext.engine.refusals import refuse_unsupported

GDN_LAYER = "QwenGatedDeltaNetAttention"
_activated = threading.Event()


def activate(vllm_config: Any) -> None:
    """Raises OptionError or CompatibilityError before anything is loaded; idempotent."""
    check_hooks()
    refuse_unsupported(vllm_config)
    DDTreeOptions.from_config(vllm_config)
    node_budget(vllm_config)
    _register_gdn_layer()
    _register_target(vllm_config)
    _activated.set()


def require_activated() -> None:
    """Raises OptionError in a process whose worker is not ours: it would serve stock's chains under the tree's attention."""
    if not _activated.is_set():
        raise OptionError(
            "--attention-backend CUSTOM is the tree's attention, and this worker is not the tree's: "
            "pass --worker-cls ddtree_ext.engine.worker.DDTreeWorker, or leave --attention-backend out for vLLM without trees"
        )


def _register_gdn_layer() -> None:
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot

    from ddtree_ext.engine.gdn_layer import TreeGatedDeltaNet

    if op_registry_oot.get(GDN_LAYER) is not TreeGatedDeltaNet:
        PluggableLayer.register_oot(TreeGatedDeltaNet, name=GDN_LAYER)


def _register_target(vllm_config: Any) -> None:
    """Subclasses the target's model class: its model state is ours, its GDN window as narrow as without drafts."""
    from vllm.model_executor.model_loader import utils
    from vllm.model_executor.models import ModelRegistry

    stock, architecture = utils.get_model_architecture(vllm_config.model_config)
    if not getattr(stock, "ddtree_target", False):
        ModelRegistry.register_model(architecture, target_class(stock, vllm_config))
        utils._MODEL_ARCH_BY_HASH.clear()  # what was resolved before, in this process, is the stock class


def target_class(stock: type, vllm_config: Any) -> type:
    """A subclass of the target model that names our model state [vllm/v1/worker/gpu/model_states/__init__.py]."""
    import copy

    from ddtree_ext.engine.model_state import state_class_for

    def get_model_state_cls(self: Any) -> type:
        from vllm.v1.worker.gpu.model_states import resolve_model_state_cls

        class Stock:
            """The model as stock resolves it: without our hook, and with its own if it had one."""

            modules = self.modules
            if hasattr(stock, "get_model_state_cls"):
                get_model_state_cls = lambda _: stock.get_model_state_cls(self)  # noqa: E731

        return state_class_for(resolve_model_state_cls(vllm_config, Stock()))

    members: dict[str, Any] = {"get_model_state_cls": get_model_state_cls, "ddtree_target": True}
    if hasattr(stock, "get_mamba_state_shape_from_config"):

        def state_shape(cls: Any, config: Any) -> Any:
            plain = copy.copy(config)
            plain.speculative_config = None
            return stock.get_mamba_state_shape_from_config(plain)

        members["get_mamba_state_shape_from_config"] = classmethod(state_shape)
    return type(f"Tree{stock.__name__}", (stock,), members)
