"""Records what a verify step computed: every tree's rows, and the logits at them. Wraps the sampler in the engine's process."""

from __future__ import annotations

from typing import Any


def record_rows(into: list[dict[str, Any]], limit: int = 200) -> None:
    """From here on appends one record per request and step, at most `limit`: base, tokens, parents, logits of live rows.

    `prefix` is the request's text so far (prompt and committed output), so that a path can be run alone afterwards.
    """
    from ddtree_ext.engine.sampler import TreeSampler

    stock = TreeSampler._verify

    def recording(self: Any, logits: Any, draft_logits: Any, draft_sampled: Any, *rest: Any) -> Any:
        cu_num_logits, idx_mapping = rest[1], rest[2]
        trees, states = self._step.trees, self.sampler.req_states
        for number, slot in enumerate(idx_mapping.tolist()):
            first, end = int(cu_num_logits[number]), int(cu_num_logits[number + 1])
            live = min(int(trees.num_nodes[slot]), end - first - 1)
            if live < 1 or len(into) >= limit or not int(self._step.is_tree[number]):
                continue
            total = int(states.total_len.gpu[slot])
            into.append(
                {
                    "prefix": states.all_token_ids.gpu[slot, :total].tolist(),
                    "tokens": draft_sampled[first : first + live + 1].tolist(),
                    "parents": trees.parents[slot, : live + 1].tolist(),
                    "logits": logits[first : first + live + 1].float().tolist(),
                }
            )
        return stock(self, logits, draft_logits, draft_sampled, *rest)

    TreeSampler._verify = recording
