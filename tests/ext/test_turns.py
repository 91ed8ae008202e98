"""benchmarks.gpu.turns: nobody measures before all are loaded, and never two at a time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.turns import Turns


@dataclass(frozen=True)
class Spec:
    place: int
    turns: str
    together: int


def test_arms_wait_for_the_last_one_and_then_measure_one_at_a_time(tmp_path: Path) -> None:
    loaded: list[str] = []
    measuring: list[str] = []
    overlaps: list[tuple[str, ...]] = []

    def arm(place: int, load_s: float) -> None:
        name = "tree:31"  # both: the same arm twice
        turns = Turns.of(Spec(place, str(tmp_path), 3))
        time.sleep(load_s)
        loaded.append(name)
        turns.wait_for_all()
        assert len(loaded) == 2  # the third failed
        for _ in range(5):
            with turns.mine():
                measuring.append(name)
                overlaps.append(tuple(measuring))
                time.sleep(0.01)
                measuring.remove(name)

    threads = [threading.Thread(target=arm, args=(n, n / 20)) for n in (1, 6)]
    for thread in threads:
        thread.start()
    Turns.of(Spec(0, str(tmp_path), 3)).mark()
    for thread in threads:
        thread.join(30)
    assert len(overlaps) == 10
    assert all(len(names) == 1 for names in overlaps)


def test_an_arm_alone_waits_for_nobody() -> None:
    turns = Turns.of(Spec(0, "", 1))
    turns.wait_for_all()
    with turns.mine():
        pass
