"""The estimate of a whole step: it explains what was measured on the H200, and moves as bytes, FLOPs and ranks say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu import acceptance, estimate
from benchmarks.gpu.acceptance import Drafter, tokens
from benchmarks.gpu.calibration import MATRIX, MATRIX_MEASURED, MEASURED, Cell, Rate
from benchmarks.gpu.dims import QWEN36_27B
from benchmarks.gpu.estimate import BATCHES, PAIR, Case
from benchmarks.gpu.roofline import A6000, H200
from benchmarks.gpu.whole_step import Arm, Bus, Machine, Product, drafter_products, step, target_products

TOLERANCE = 0.05
ONE = Machine(H200)


def seconds(arm: str, batch: int, machine: Machine = PAIR, context: int = 4096) -> float:
    return sum(step(QWEN36_27B, Arm.of(arm), batch, context, machine).values())


class TestCalibration:
    @pytest.mark.parametrize("cell", MEASURED, ids=lambda cell: f"{cell.arm}-{cell.batch}")
    def test_every_measured_step_comes_out(self, cell: Cell) -> None:
        assert seconds(cell.arm, cell.batch, ONE) == pytest.approx(cell.ms / 1e3, rel=TOLERANCE)

    @pytest.mark.parametrize("shape", MATRIX_MEASURED)
    def test_and_so_do_the_dense_products_alone(self, shape: tuple[int, int]) -> None:
        batch, rows = shape[0], shape[0] * (shape[1] + 1)
        found = (*target_products(QWEN36_27B, rows, 1), *drafter_products(QWEN36_27B, batch, 15, rows, 1))
        assert sum(p.seconds(ONE) for p in found) == pytest.approx(MATRIX_MEASURED[shape] / 1e3, rel=TOLERANCE)

    def test_the_tables_show_each_of_them_with_its_error(self) -> None:
        assert len([*estimate.products_table()]) == 1 + len(MATRIX_MEASURED)
        lines = [*estimate.calibration_table()]
        assert [line.split()[0] for line in lines[1:]] == [cell.arm for cell in MEASURED]
        assert lines[1].split()[:3] == ["ar", "1", "15.26"]
        assert lines[1].endswith("%")


class TestProducts:
    def test_the_weights_are_the_models(self) -> None:
        """25.6 billion of the target's take part in a product, as its embedding is only looked up; 1.75 of the drafter's own."""
        target = sum(p.weights for p in target_products(QWEN36_27B, 1, 1)) / 2
        drafter = sum(p.weights for p in drafter_products(QWEN36_27B, 1, 15, 16, 1)) / 2
        head = QWEN36_27B.hidden * QWEN36_27B.vocabulary
        assert target / 1e9 == pytest.approx(25.6, abs=0.2)
        assert (drafter - head) / 1e9 == pytest.approx(1.75, abs=0.1)

    def test_two_ranks_halve_them_but_for_what_every_rank_has(self) -> None:
        whole, half = (sum(p.weights for p in target_products(QWEN36_27B, 16, ranks)) for ranks in (1, 2))
        assert half == whole / 2
        whole, half = (sum(p.weights for p in drafter_products(QWEN36_27B, 1, 15, 16, ranks)) for ranks in (1, 2))
        copied = 5 * QWEN36_27B.hidden**2 * 2
        assert half - copied == (whole - copied) / 2

    def test_of_few_rows_one_takes_as_long_as_its_weights(self) -> None:
        product = Product(1, 5120, 34816, rows=4)
        assert product.seconds(ONE) - MATRIX.launch * 1e-6 == pytest.approx(
            product.weights / (H200.memory * MATRIX.memory), rel=0.01
        )

    def test_of_many_rows_as_long_as_its_flops(self) -> None:
        product = Product(1, 5120, 34816, rows=4096)
        assert product.seconds(ONE) == pytest.approx(product.flops / (H200.bf16 * MATRIX.compute), rel=0.02)


class TestStep:
    @pytest.mark.parametrize("kind", ["chain", "tree"])
    @pytest.mark.parametrize("machine", [ONE, PAIR], ids=["H200", "pair"])
    def test_more_requests_are_never_cheaper_and_neither_are_more_nodes_of_one_tile(
        self, kind: str, machine: Machine
    ) -> None:
        for nodes in (0, 3, 7, 15, 31, 63) if kind == "tree" else (7, 15):
            times = [seconds(f"{kind}:{nodes}", batch, machine) for batch in (1, 2, 4, 8, 16)]
            assert times == sorted(times)
        for batch in BATCHES:
            times = [seconds(f"{kind}:{nodes}", batch, machine) for nodes in (1, 3, 7, 15, 31, 63)]
            assert times == sorted(times)

    def test_a_chain_of_ours_writes_no_state_per_row_and_has_the_same_products(self) -> None:
        chain, tree = (step(QWEN36_27B, Arm.of(arm), 8, 4096, ONE) for arm in ("chain:15", "tree:15"))
        assert chain["delta rule"] > 2 * tree["delta rule"]
        assert chain["target's products"] == tree["target's products"]
        assert chain["bus"] == 0.0

    def test_without_drafts_no_drafter_runs_unless_it_is_the_trees_engine(self) -> None:
        ar, tree = (step(QWEN36_27B, Arm.of(arm), 2, 4096, PAIR) for arm in ("ar", "tree:0"))
        assert ar["drafter's products"] == 0.0 < tree["drafter's products"]

    def test_the_bus_is_its_latency_and_its_bytes(self) -> None:
        """129 all-reduces of one row of 10 KB and half of a row of logits, which lie on the other rank."""
        rows = {bus: step(QWEN36_27B, Arm("ar"), 1, 4096, replace(PAIR, bus=bus))["bus"] for bus in (
            Bus(1e30, 1e-6), Bus(1e9, 0.0))}  # fmt: skip
        assert [*rows.values()] == pytest.approx([130e-6, (129 * 5120 * 2 + 248320) / 1e9])

    def test_a_share_is_never_more_than_the_peak(self) -> None:
        assert Machine(A6000, quality=1.2).rate(Rate(2.0, 0.9)) == Rate(2.0 / 1.2, 1.0)
        assert Machine(A6000, quality=1.2).matrix.memory == 1.0

    def test_worse_shares_are_slower_and_worse_kernels_of_ours_do_not_touch_stock(self) -> None:
        slow, ours = replace(PAIR, quality=0.8), replace(PAIR, ours=0.5)
        assert seconds("tree:31", 1, slow) > seconds("tree:31", 1)
        assert seconds("tree:31", 1, ours) > seconds("tree:31", 1)
        assert seconds("chain:15", 1, ours) == seconds("chain:15", 1)


class TestAcceptance:
    def test_the_chain_has_the_length_that_was_asked_for(self) -> None:
        for length in (4.6, 5.5, 6.4):
            assert tokens(Drafter(length))[15] == pytest.approx(length, abs=1e-3)

    def test_a_length_that_cannot_be_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"a chain of 15 has .* tokens a step"):
            acceptance.drafts(Drafter(length=16.0))

    def test_more_nodes_accept_more_and_none_accept_the_bonus_alone(self) -> None:
        found = tokens(Drafter())
        assert found[0] == 1.0
        assert [*found] == sorted(set(found))

    def test_trees_of_31_gain_what_others_saw_with_blocks_of_16(self) -> None:
        """8 to 22 %; as assumed near its lower end."""
        assumed, often = (tokens(drafter) for drafter in (Drafter(), Drafter(second=0.6, beside=0.5)))
        assert 1.08 < assumed[31] / assumed[15] < often[31] / often[15] < 1.22


class TestChoice:
    def test_is_the_smallest_budget_that_is_as_good_as_the_fastest(self) -> None:
        case = Case()
        for batch in BATCHES:
            chosen = estimate.budget(case, batch)
            speeds = {nodes: case.speed(Arm("tree", nodes), batch) for nodes in estimate.BUDGETS}
            assert speeds[chosen] >= 0.98 * max(speeds.values())
            assert all(speed < 0.98 * max(speeds.values()) for nodes, speed in speeds.items() if nodes < chosen)

    def test_many_requests_get_no_more_nodes_than_few(self) -> None:
        for case in estimate.cases(Case()):
            budgets = [estimate.budget(case, batch) for batch in BATCHES]
            assert budgets == sorted(budgets, reverse=True)

    def test_a_request_alone_always_has_drafts(self) -> None:
        """By which the gate proves a service, however bad they are."""
        assert estimate.budget(Case(drafter=Drafter(length=1.5, often=0.0)), 1) > 0

    def test_tiers_go_up_from_one_without_a_gap_and_equal_neighbours_are_one(self) -> None:
        assert estimate.tiers((31, 15, 15, 7)) == [[1, 1, 31], [2, 4, 15], [5, 8, 7]]
        assert estimate.tiers((15, 15, 15, 15)) == [[1, 8, 15]]

    def test_the_tables_have_every_arm_at_every_batch_and_every_other_assumption(self) -> None:
        assert len([*estimate.speed_table(Case())]) == 1 + len(BATCHES) * len(estimate.ARMS)
        lines = [*estimate.choice_table(Case())]
        assert len(lines) == 1 + len(estimate.cases(Case()))
        assert lines[1].startswith("as assumed")
