"""Gated DeltaNet over trees: every row computes what its root path would alone; only the accepted path is committed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gdn_batch import (
    POISON,
    SLOTS,
    Batch,
    Request,
    Step,
    chain,
    commit,
    random_batch,
    random_layer,
    random_parents,
    tree,
    verify,
)

from ddtree_ext.core import gdn_reference as reference
from ddtree_ext.kernels.gdn_commit import CommitTable, GdnLayer
from ddtree_ext.kernels.gdn_stash import GdnShape, GdnStash

SMALL = GdnShape(k_heads=1, v_heads=2, k_dim=16, v_dim=16)
UNEVEN = GdnShape(k_heads=2, v_heads=6, k_dim=32, v_dim=16)  # heads not a power of two, K != V
BF16, F32 = torch.bfloat16, torch.float32
ORDERS = [("VK", "DS"), ("KV", "SD")]


def mixed_requests(gen: torch.Generator) -> list[Request]:
    """Unequal trees on scattered slots, one with dead rows, among rows that are no tree and padding."""
    return [
        tree(5, random_parents(gen, 9)),
        Request(2, None, 4),  # a prompt's rows
        tree(7, random_parents(gen, 6), dead=3),
        tree(1, [-1]),  # a root alone
        tree(0, chain(3)),  # null block
        tree(3, chain(7)),
        tree(-1, chain(2)),  # padding
        Request(4, None, 1),
    ]


LIVE = (0, 2, 3, 5)  # requests of mixed_requests with a tree and a slot


@pytest.fixture
def mixed(rng: torch.Generator) -> Step:
    layer = random_layer(rng, UNEVEN)
    return verify(layer, random_batch(rng, UNEVEN, mixed_requests(rng), BF16), rows_of_a_tree=12)


def is_live(step: Step) -> torch.Tensor:
    live = torch.zeros(len(step.out), dtype=torch.bool)
    for number in LIVE:
        live[step.batch.live(number)] = True
    return live


class TestConvolution:
    @pytest.mark.parametrize("window_order", ["DS", "SD"])
    @pytest.mark.parametrize(("width", "bias"), [(4, False), (4, True), (2, True), (3, False)])
    def test_every_row_sums_over_its_root_path(
        self, rng: torch.Generator, width: int, bias: bool, window_order: str
    ) -> None:
        layer = random_layer(rng, SMALL, width, bias, window_order=window_order, dtype=F32)
        step = verify(layer, random_batch(rng, SMALL, [tree(5, random_parents(rng, 11)), tree(2, chain(6))], F32))
        for number, request in enumerate(step.batch.requests):
            exact = reference.convolve_tree(
                step.batch.x[step.batch.live(number)].double(),
                layer.window[request.slot].double(),
                layer.weight.double(),
                None if layer.bias is None else layer.bias.double(),
                request.parents or [],
            )
            torch.testing.assert_close(step.conv[step.batch.live(number)].double(), exact, rtol=1e-5, atol=1e-6)

    def test_reference_on_a_chain_is_torchs_convolution(self, rng: torch.Generator) -> None:
        layer = random_layer(rng, SMALL, dtype=F32)
        x = torch.randn(7, SMALL.conv_dim, generator=rng)
        inputs = torch.cat([layer.window[1], x.T], dim=1)[None]
        expected = torch.nn.functional.conv1d(inputs, layer.weight[:, None], groups=SMALL.conv_dim)[0].T
        ours = reference.convolve_tree(x, layer.window[1], layer.weight, None, chain(7))
        torch.testing.assert_close(ours, torch.nn.functional.silu(expected), rtol=1e-5, atol=1e-6)

    def test_a_window_wider_than_the_kernel_is_read_at_its_front(self, rng: torch.Generator) -> None:
        layer = random_layer(rng, SMALL)
        wide = torch.cat([layer.window, torch.full((SLOTS, SMALL.conv_dim, 5), torch.nan, dtype=BF16)], dim=2)
        batch = random_batch(rng, SMALL, [tree(5, random_parents(rng, 5))], BF16)
        wider = verify(replace(layer, window=wide), batch)
        assert torch.equal(wider.conv, verify(layer, batch).conv)

    def test_keeps_the_raw_inputs_of_live_rows_only(self, mixed: Step) -> None:
        kept = torch.full_like(mixed.stash.x, POISON)
        for number in LIVE:
            kept[number, : mixed.batch.requests[number].live] = mixed.batch.x[mixed.batch.live(number)]
        assert torch.equal(mixed.stash.x, kept)


class TestDeltaRule:
    @pytest.mark.parametrize(("state_order", "window_order"), ORDERS)
    @pytest.mark.parametrize("shape", [SMALL, UNEVEN, GdnShape(2, 4, 64, 64)], ids=["small", "uneven", "dense"])
    def test_agrees_with_the_rule_row_by_row_in_float64(
        self, rng: torch.Generator, shape: GdnShape, state_order: str, window_order: str
    ) -> None:
        layer = random_layer(rng, shape, state_order=state_order, window_order=window_order, dtype=F32)
        requests = [tree(5, random_parents(rng, 9)), tree(2, random_parents(rng, 5), dead=2)]
        step = verify(layer, random_batch(rng, shape, requests, F32))
        for number, request in enumerate(requests):
            exact = step.exact(number)
            rows = slice(0, request.live)
            torch.testing.assert_close(step.out[step.batch.live(number)].double(), exact.out, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(step.stash.k[number, rows].double(), exact.k, rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(step.stash.u[number, rows].double(), exact.u, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(step.stash.decay[number, rows].double(), exact.g.exp(), rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize(("state_order", "window_order"), ORDERS)
    def test_every_row_equals_its_root_path_run_alone(
        self, rng: torch.Generator, state_order: str, window_order: str
    ) -> None:
        layer = random_layer(rng, SMALL, state_order=state_order, window_order=window_order, dtype=F32)
        step = verify(layer, random_batch(rng, SMALL, [tree(3, chain(4)), tree(6, random_parents(rng, 10))], F32))
        for row in range(10):
            alone = verify(layer, step.batch.path_alone(1, row))
            torch.testing.assert_close(step.out[4 + row], alone.out[-1], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("seed", range(6))
    def test_trees_of_any_growth(self, rng: torch.Generator, seed: int) -> None:
        """Without a spine: many inner rows, far from their parents."""
        gen = rng.manual_seed(seed)
        parents = [-1, *[int(torch.randint(max(0, row - 6), row, (), generator=gen)) for row in range(1, 20)]]
        layer = random_layer(gen, SMALL, dtype=F32)
        step = verify(layer, random_batch(gen, SMALL, [tree(1, chain(2)), tree(4, parents)], F32))
        exact = step.exact(1)
        torch.testing.assert_close(step.out[2:].double(), exact.out, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step.stash.u[1].double(), exact.u, rtol=1e-5, atol=1e-5)

    def test_the_largest_tree(self, rng: torch.Generator) -> None:
        """63 nodes, so that row 63 and its sign bit are in use."""
        layer = random_layer(rng, SMALL, dtype=F32)
        parents = [*chain(40), *[int(torch.randint(0, row, (), generator=rng)) for row in range(40, 63)], 62]
        step = verify(layer, random_batch(rng, SMALL, [tree(1, parents)], F32))
        exact = step.exact(0)
        torch.testing.assert_close(step.out.double(), exact.out, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step.stash.u[0].double(), exact.u, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("rows", [16, 33])
    def test_keys_that_resemble_each_other(self, rng: torch.Generator, rows: int) -> None:
        """Every row of a chain overwrites what the row before wrote: a series in powers of A would cancel to nothing here."""
        layer = random_layer(rng, SMALL, dtype=F32)
        batch = random_batch(rng, SMALL, [tree(1, chain(rows))], F32)
        alike = torch.ones(rows, SMALL.conv_dim) + 0.1 * batch.x
        batch.a.fill_(-20.0)  # forgets nothing
        batch.b.fill_(6.0)  # beta is almost 1
        step = verify(layer, batch, conv_outputs=alike)
        exact = step.exact(0)
        assert exact.k[0, 0] @ exact.k[-1, 0] > 0.9
        torch.testing.assert_close(step.out.double(), exact.out, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step.stash.u[0].double(), exact.u, rtol=1e-5, atol=1e-5)

    def test_a_strong_gate_above_costs_the_rows_below_no_digits(self, rng: torch.Generator) -> None:
        """The root forgets all but e^-3000, further than float32's exponents reach; below it little is forgotten."""
        layer = random_layer(rng, SMALL, dtype=F32)
        layer.a_log.fill_(0.0)
        batch = random_batch(rng, SMALL, [tree(1, chain(12))], F32)
        batch.a.fill_(-6.0)
        batch.a[0] = 3000.0
        step = verify(layer, batch)
        exact = step.exact(0)
        torch.testing.assert_close(step.out.double(), exact.out, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(step.stash.u[0].double(), exact.u, rtol=1e-5, atol=1e-5)

    def test_reads_the_committed_caches_and_leaves_them(self, rng: torch.Generator) -> None:
        layer = random_layer(rng, SMALL)
        before = layer.copy()
        verify(layer, random_batch(rng, SMALL, [tree(4, chain(3))], BF16))
        assert torch.equal(layer.state, before.state)
        assert torch.equal(layer.window, before.window)

    def test_other_strides_than_a_rows_are_refused(self, rng: torch.Generator) -> None:
        layer = random_layer(rng, SMALL)
        batch = random_batch(rng, SMALL, [tree(4, chain(3))], BF16)
        turned = Batch(batch.requests, batch.x, batch.a.T.contiguous().T, batch.b)
        with pytest.raises(ValueError, match="only the row stride"):
            verify(layer, turned)


class TestMixedBatch:
    def test_writes_the_live_rows_of_trees_and_no_others(self, mixed: Step) -> None:
        live = is_live(mixed)
        assert live.sum() == 9 + 6 + 1 + 7
        for written in (mixed.conv, mixed.out):
            assert not written[live].isnan().any()
            assert written[~live].isnan().all()

    def test_keeps_live_rows_only(self, mixed: Step) -> None:
        for kept in (mixed.stash.k, mixed.stash.u, mixed.stash.decay):
            live = torch.zeros(kept.shape[:2], dtype=torch.bool)
            for number in LIVE:
                live[number, : mixed.batch.requests[number].live] = True
            poisoned = (kept == POISON).flatten(2).all(2)
            assert torch.equal(~poisoned, live)

    @pytest.mark.parametrize("number", LIVE)
    def test_each_tree_equals_itself_alone(self, mixed: Step, number: int) -> None:
        live = mixed.batch.live(number)
        request = mixed.batch.requests[number]
        batch = Batch([tree(request.slot, request.parents or [])], *(t[live] for t in vars_of(mixed.batch)))
        assert torch.equal(verify(mixed.layer, batch, rows_of_a_tree=12).out, mixed.out[live])


def vars_of(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return batch.x, batch.a, batch.b


class TestCommit:
    @pytest.mark.parametrize(("state_order", "window_order"), ORDERS)
    @pytest.mark.parametrize("shape", [SMALL, UNEVEN], ids=["small", "uneven"])
    def test_of_any_row_leaves_what_its_chain_leaves(
        self, rng: torch.Generator, shape: GdnShape, state_order: str, window_order: str
    ) -> None:
        layer = random_layer(rng, shape, state_order=state_order, window_order=window_order)
        parents = random_parents(rng, 9)
        batch = random_batch(rng, shape, [tree(6, parents)], BF16)
        for row in range(len(parents)):
            path = reference.root_path(parents, row)
            step = verify(layer.copy(), batch)
            exact = step.exact(0).states[row]
            window = reference.shift_window(layer.window[6], batch.x, path)
            step.commit([path])
            torch.testing.assert_close(step.layer.state[6].double(), exact, rtol=1e-5, atol=1e-5)
            assert torch.equal(step.layer.window[6], window)

    def test_touches_the_slots_of_trees_and_no_others(self, mixed: Step) -> None:
        before = mixed.layer.copy()
        mixed.commit([[0] for _ in mixed.batch.requests])
        changed = {s for s in range(SLOTS) if not torch.equal(before.state[s], mixed.layer.state[s])}
        moved = {s for s in range(SLOTS) if not torch.equal(before.window[s], mixed.layer.window[s])}
        assert changed == moved == {5, 7, 1, 3}

    def test_of_unequal_paths_in_one_batch(self, mixed: Step) -> None:
        before = mixed.layer.copy()
        paths = [[0] for _ in mixed.batch.requests]
        for number in LIVE:
            request = mixed.batch.requests[number]
            paths[number] = reference.root_path(request.parents or [], request.live - 1)
        assert len({len(paths[number]) for number in LIVE}) > 2
        exact = {number: mixed.exact(number).states[-1] for number in LIVE}
        mixed.commit(paths)
        for number in LIVE:
            slot = mixed.batch.requests[number].slot
            x = mixed.batch.x[mixed.batch.live(number)]
            torch.testing.assert_close(mixed.layer.state[slot].double(), exact[number], rtol=1e-5, atol=1e-5)
            assert torch.equal(mixed.layer.window[slot], reference.shift_window(before.window[slot], x, paths[number]))

    def test_a_tree_that_consumed_nothing_keeps_its_caches(self, rng: torch.Generator) -> None:
        step = verify(random_layer(rng, SMALL), random_batch(rng, SMALL, [tree(6, chain(4))], BF16))
        before = step.layer.copy()
        step.commit([[]])
        assert torch.equal(before.state, step.layer.state)
        assert torch.equal(before.window, step.layer.window)

    def test_all_layers_at_once_each_with_its_groups_slots(self, rng: torch.Generator) -> None:
        """Layers of different cache groups have their own block tables: one launch serves them all."""
        layers = [random_layer(rng, SMALL) for _ in range(3)]
        slots, groups, parents = [[6, 2], [1, 8]], [0, 1, 0], [random_parents(rng, 6), chain(5)]
        paths = [reference.root_path(parents[0], 5), [0, 1]]

        def steps() -> list[Step]:
            gen = torch.Generator(rng.device).manual_seed(5)
            per_group = [[tree(slot, tree_) for slot, tree_ in zip(row, parents, strict=True)] for row in slots]
            return [
                verify(layer.copy(), random_batch(gen, SMALL, per_group[group], BF16))
                for layer, group in zip(layers, groups, strict=True)
            ]

        together, apart = steps(), steps()
        commit(together, paths, slots=torch.tensor(slots, dtype=torch.int32), groups=groups)
        for one, other in zip(together, apart, strict=True):
            other.commit(paths)
            assert torch.equal(one.layer.state, other.layer.state)
            assert torch.equal(one.layer.window, other.layer.window)

    def test_two_steps_in_a_row_are_one_longer_chain(self, rng: torch.Generator) -> None:
        layer = random_layer(rng, SMALL, dtype=F32)
        whole = random_batch(rng, SMALL, [tree(3, chain(7))], F32)
        once = verify(layer.copy(), whole)
        once.commit([[*range(7)]])
        twice = layer.copy()
        for part in (slice(0, 3), slice(3, 7)):
            batch = Batch([tree(3, chain(part.stop - part.start))], *(t[part] for t in vars_of(whole)))
            step = verify(twice, batch)
            torch.testing.assert_close(step.out, once.out[part], rtol=1e-5, atol=1e-6)
            step.commit([[*range(part.stop - part.start)]])
        torch.testing.assert_close(twice.state, once.layer.state, rtol=1e-5, atol=1e-5)
        assert torch.equal(twice.window, once.layer.window)


class TestCommitTable:
    def test_layers_of_another_form_are_refused(self, rng: torch.Generator) -> None:
        layers = [random_layer(rng, SMALL, state_order=order) for order in ("VK", "KV")]
        stash = GdnStash.allocate(1, 4, SMALL, BF16, layers[0].state.device)
        with pytest.raises(ValueError, match="GDN layer 1 is not of layer 0's form"):
            CommitTable.of([GdnLayer(la.state, la.window, stash) for la in layers], 4)

    def test_a_state_in_half_precision_is_refused(self, rng: torch.Generator) -> None:
        layer = random_layer(rng, SMALL)
        stash = GdnStash.allocate(1, 4, SMALL, BF16, layer.state.device)
        with pytest.raises(ValueError, match="mamba-ssm-cache-dtype"):
            CommitTable.of([GdnLayer(layer.state.bfloat16(), layer.window, stash)], 4)
