"""The benchmarks' decisions and sums, and their cases at tiny widths; what a GPU takes is not tested here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from conftest import DEVICE

from benchmarks.gpu import kernels, step_time, sweep, trace
from benchmarks.gpu.dims import TINY
from benchmarks.gpu.kernel_cases import cases
from benchmarks.gpu.kernel_inputs import beside_the_spine
from benchmarks.gpu.roofline import Card, Step, Work, works
from ddtree_ext.core.buffers import TreeBuffers

ROOT = Path(__file__).parents[2]
STEP = Step(batch=2, nodes=7, context=20, path=4)


class TestStepTime:
    def test_a_profile_is_refused_on_a_cpu(self) -> None:
        with pytest.raises(SystemExit):
            step_time.arguments(["--device", "cpu", "--profile", "8"])

    def test_the_room_is_what_vllm_says_when_it_has_loaded(self) -> None:
        line = "(EngineCore pid=7) INFO 11-30 [x.py:1] Maximum concurrency for 8,448 tokens per request: 41.27x\n"
        assert step_time.room(f"loading\n{line}more") == 41.27
        assert step_time.room("it failed before that") is None

    def test_the_table_shows_what_was_measured_and_what_failed(self) -> None:
        good = {"arm": "ar", "windows": {"1x64": [3.0, 1.0, 2.0]}, "ttft": {"1x64": [9.0, 7.0, 8.0]}, "accepted": {}}
        text = step_time.table([good | {"off_spine": {}, "room": 12.5}, {"arm": "tree:15", "error": "no room"}])
        assert text.splitlines()[1].split() == ["ar", "1x64", "2.00", "1.00", "3.00", "-", "-", "8.00", "12.50"]
        assert text.splitlines()[2] == "tree:15: FAILED: no room"


class TestTrace:
    """Times in microseconds, as a chrome trace has them."""

    @staticmethod
    def event(cat: str, name: str, ts: float = 0.0, dur: float = 0.0) -> dict[str, object]:
        return {"cat": cat, "name": name, "ts": ts, "dur": dur}

    def test_a_gpu_is_busy_while_any_kernel_runs(self) -> None:
        events = [
            self.event("kernel", "b", ts=5, dur=5),
            self.event("kernel", "a", ts=0, dur=8),
            self.event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", ts=18, dur=2),
            self.event("cpu_op", "aten::mm", ts=0, dur=90),
        ]
        found = trace.profile(events, steps=2)
        assert found.busy == pytest.approx(12 / 20)
        assert found.step_us == 10
        assert found.copies_to_host == 0.5
        assert [kernel.name[0] for kernel in found.kernels] == ["a", "b", "M"], "the longest first"
        assert (found.kernels[0].microseconds, found.kernels[0].launches) == (4, 0.5)

    def test_waits_and_graphs_are_counted_by_the_calls_of_the_host(self) -> None:
        events = [
            self.event("kernel", "a", dur=1),
            self.event("cuda_runtime", "cudaEventSynchronize"),
            self.event("cuda_runtime", "cudaGraphLaunch"),
            self.event("cuda_runtime", "cudaLaunchKernel"),
            self.event("cuda_driver", "cuGraphLaunch"),
        ]
        found = trace.profile(events, steps=1)
        assert found.waits == {"cudaEventSynchronize": 1}
        assert found.graphs == 2

    def test_without_a_kernel_it_is_no_profile_of_a_gpu(self) -> None:
        with pytest.raises(ValueError, match="saw no GPU"):
            trace.profile([self.event("cpu_op", "aten::mm")], steps=1)

    def test_the_table_sums_what_it_leaves_out(self) -> None:
        events = [self.event("kernel", name, ts=10 * i, dur=10 - i) for i, name in enumerate("abcd")]
        lines = trace.table(asdict(trace.profile(events, steps=1)), lines=2).splitlines()
        assert [line.split()[-1] for line in lines[1:]] == ["a", "b", "rest"]
        assert float(lines[-1].split()[0]) == 15


class TestKernels:
    WORK = (Work("a", 2, bytes=6e6, bf16=4e6, tf32=2e6), Work("b", 1, bytes=2e6, fp32=2e6))
    CARD = Card("card", memory=1e12, bf16=1e12, tf32=1e12, fp32=1e12)

    def test_rates_are_of_the_median(self) -> None:
        row = kernels.timed("both", STEP, self.WORK, self.CARD, [30.0, 10.0, 16.0])
        assert (row.median, row.smallest, row.largest, row.launches) == (16.0, 10.0, 30.0, 3)
        assert row.gigabytes_per_s == pytest.approx(500)
        assert row.tflops == pytest.approx(0.5)
        assert row.roofline == pytest.approx(8.0)
        assert row.share == pytest.approx(0.5)

    def test_the_table_has_a_line_for_every_case(self) -> None:
        row = kernels.timed("both", STEP, self.WORK, self.CARD, [16.0])
        head, line = kernels.table([row]).splitlines()
        assert len(head) == len(line)
        assert line.split() == ["both", "2", "x", "7", "3", "16.0", "16.0", "16.0", "500.0", "0.5", "8.0", "0.50"]

    def test_a_card_is_known_by_its_name(self) -> None:
        assert kernels.card_of("NVIDIA H200").name == "H200"
        assert kernels.card_of("NVIDIA RTX A6000").name == "RTX A6000"
        with pytest.raises(ValueError, match="peaks of NVIDIA L4 are not known"):
            kernels.card_of("NVIDIA L4")

    @pytest.mark.parametrize("words", [["--nodes", "2"], ["--nodes", "15,4", "--path", "5"]])
    def test_trees_that_are_too_small_are_refused(self, words: list[str]) -> None:
        with pytest.raises(SystemExit):
            kernels.arguments(words)

    def test_tiles_are_named_for_a_sweep(self) -> None:
        assert kernels.arguments(["--tiles", "apply_v=16,apply_warps=8"]).tiles == {"apply_v": 16, "apply_warps": 8}
        assert kernels.arguments([]).tiles == {}

    def test_what_can_be_on_can_be_off_and_attention_has_tiles_too(self) -> None:
        tiles = kernels.sizes("apply_halved=0,apply_stages=5,attention_keys=32,attention_programs=264")
        assert tiles == {"apply_halved": 0, "apply_stages": 5, "attention_keys": 32, "attention_programs": 264}

    @pytest.mark.parametrize(
        "word", ["apply=16", "attention_cost=2", "apply_v", "apply_v=24", "apply_v=-8", "apply_v=16,"]
    )
    def test_other_tiles_are_refused(self, word: str) -> None:
        with pytest.raises(SystemExit):
            kernels.arguments(["--tiles", word])

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_without_a_gpu_it_says_so(self) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.kernels"]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1].endswith("there is none here")


class TestSweep:
    """What is tried writes the same as what is, and the table says so. On the interpreter its times mean nothing."""

    WORDS = (
        "--device",
        "cpu",
        "--preset",
        "tiny",
        "--sizes",
        "2x7",
        "--context",
        "20",
        "--path",
        "4",
        "--samples",
        "1",
    )

    def test_every_kernel_is_tried_and_the_fastest_is_marked(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        settings = (
            "--settings",
            "commit_backward=1,apply_halved=1,solve_early=1",
            "--out",
            str(tmp_path / "sweep.json"),
        )
        with torch.random.fork_rng():
            assert sweep.main([*self.WORDS, *settings]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if " 2x7 " in line]
        assert [line.split()[0] for line in lines] == [kernel for kernel in sweep.CANDIDATES for _ in range(2)]
        assert sum("*" in line for line in lines) == len(sweep.CANDIDATES)
        trials = json.loads((tmp_path / "sweep.json").read_text())["trials"]
        assert [trial["error"] for trial in trials] == [""] * len(trials)
        assert all(trial["differs"] < 1e-5 for trial in trials)

    def test_all_candidates_are_settings(self) -> None:
        assert all(kernels.sizes(setting) for settings in sweep.CANDIDATES.values() for setting in settings)

    def test_one_that_fails_or_writes_something_else_is_never_the_fastest(self) -> None:
        right = sweep.Trial("k", "1x3", "", median=9.0)
        wrong = sweep.Trial("k", "1x3", "a=1", median=1.0, differs=0.5)
        broken = sweep.Trial("k", "1x3", "a=2", error="out of resource")
        undefined = sweep.Trial("k", "1x3", "a=3", median=1.0, differs=float("nan"))
        assert sweep.fastest([wrong, broken, undefined, right]) is right
        assert sweep.fastest([broken]) is None
        assert "out of resource" in sweep.table([broken, right])

    def test_settings_are_ordered_by_their_share_of_the_own_setting_over_all_sizes(self) -> None:
        own = [sweep.Trial("k", "1x3", "", median=10.0), sweep.Trial("k", "8x3", "", median=100.0)]
        half = [sweep.Trial("k", "1x3", "a=1", median=5.0), sweep.Trial("k", "8x3", "a=1", median=60.0)]
        partly = [sweep.Trial("k", "1x3", "a=2", median=1.0), sweep.Trial("k", "8x3", "a=2", error="no room")]
        lines = sweep.over_all_sizes([*own, *half, *partly]).splitlines()
        assert [line.split()[1] for line in lines] == ["0.550", "1.000"]

    @pytest.mark.parametrize("words", [["--kernels", "conv_tree"], ["--settings", "commit=8"]])
    def test_what_cannot_be_tried_is_refused(self, words: list[str]) -> None:
        with pytest.raises(SystemExit):
            sweep.arguments(words)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_without_a_gpu_it_says_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert sweep.main([]) == 2
        assert "there is none here" in capsys.readouterr().err


class TestCases:
    def test_cover_the_roofline_once_each_and_launch(self) -> None:
        covered = []
        for case in cases(TINY, STEP, DEVICE):
            case.launch()
            covered += case.kernels
        assert sorted(covered) == sorted(work.kernel for work in works(TINY, STEP))

    def test_the_tree_keeps_its_chain_one_row_behind(self) -> None:
        assert beside_the_spine(6) == ([-1, 0, 0, 2, 3, 4], [0, 1, 1, 2, 3, 4])

    def test_what_is_walked_is_the_path_that_is_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from benchmarks.gpu import kernel_cases

        walked, moved = {}, {}
        walk, compact = kernel_cases.walk_trees, kernel_cases.compact_kv

        def walk_trees(*args: torch.Tensor | TreeBuffers) -> None:
            walk(*args)
            walked.update(count=args[-2], path=args[-1])

        def compact_kv(table: object, *args: torch.Tensor) -> None:
            compact(table, *args)
            moved.update(path=args[-2], count=args[-1])

        monkeypatch.setattr(kernel_cases, "walk_trees", walk_trees)
        monkeypatch.setattr(kernel_cases, "compact_kv", compact_kv)
        for case in cases(TINY, STEP, DEVICE):
            if case.name in ("walk_trees", "compact_kv"):
                case.launch()
        assert moved["path"][0].tolist() == [0, 2, 3, 4, -1, -1, -1, -1]
        assert torch.equal(walked["path"], moved["path"])
        assert torch.equal(walked["count"], moved["count"])
