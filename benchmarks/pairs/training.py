"""What both trainings share: a learning rate that follows the clock, and checkpoints from which another process goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

WARM_UP = 0.04
"""Share of the time in which the learning rate rises; after it, a cosine down to a twentieth."""


@dataclass(frozen=True)
class Clock:
    """`seconds` of training in all, over any number of processes, each of which trains `piece` seconds at most."""

    seconds: float
    piece: float

    def rate(self, spent: float) -> float:
        """Factor on the learning rate after `spent` seconds."""
        share = min(1.0, spent / self.seconds)
        if share < WARM_UP:
            return (share + 0.002) / (WARM_UP + 0.002)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP)))


@dataclass
class Run:
    """State of a training that outlives its process: `points` are what the curve shows."""

    step: int = 0
    spent: float = 0.0
    points: list[dict[str, float]] = field(default_factory=list)


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Run:
    """The run as the last process left it; a new one where there is no checkpoint."""
    if not path.is_file():
        return Run()
    held = torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    return Run(held["step"], held["spent"], held["points"])


def checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": run.step, "spent": run.spent}
    fresh = path.with_suffix(".new")
    torch.save(held | {"points": run.points}, fresh)
    fresh.replace(path)


class Best:
    """The weights that did best on held-out text, in a file, so that they outlive the process: a small text is learned by heart."""

    def __init__(self, path: Path, model: nn.Module) -> None:
        self.path, self.model, self.held = path, model, math.inf
        if path.is_file():
            self.held = torch.load(path, map_location="cpu", weights_only=True)["held"]

    def offer(self, held: float) -> None:
        """Keeps the model as it is now if it does better."""
        if held < self.held:
            fresh = self.path.with_suffix(".new")
            torch.save({"held": held, "model": self.model.state_dict()}, fresh)
            fresh.replace(self.path)
            self.held = held

    def restore(self) -> None:
        """Puts the best weights back into the model."""
        place = next(self.model.parameters()).device
        self.model.load_state_dict(torch.load(self.path, map_location=place, weights_only=True)["model"])


def train(
    model: nn.Module,
    loss_of_step: Callable[[int], torch.Tensor],
    look: Callable[[], dict[str, float]],
    clock: Clock,
    path: Path,
    *,
    rate: float,
    decay: float,
    look_every: float,
    name: str,
) -> Run:
    """Steps until the clock says so; `loss_of_step` gets the step's number, `look` measures on text held out.

    A process's first step is not counted: it compiles, and the learning rate would have risen meanwhile. Looks, prints and
    checkpoints every `look_every` seconds and at the end. Returns the run; it is over when spent >= seconds.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=decay)
    run = resume(path, model, optimizer)
    before, first, looked, losses = run.spent, run.step, time.monotonic(), []
    begun = looked
    while run.spent < clock.seconds and run.spent - before < clock.piece:
        for group in optimizer.param_groups:
            group["lr"] = rate * clock.rate(run.spent)
        loss = loss_of_step(run.step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if run.step == first:
            print(f"{name}: first step {float(losses[0]):.3f} after {time.monotonic() - begun:.0f} s", flush=True)
            begun = time.monotonic()
        run.step, run.spent = run.step + 1, before + time.monotonic() - begun
        if time.monotonic() - looked >= look_every or run.step == 1:
            _look(run, losses, look, name)
            checkpoint(path, model, optimizer, run)
            losses, looked = [], time.monotonic()
    if losses:
        _look(run, losses, look, name)
    checkpoint(path, model, optimizer, run)
    return run


def _look(run: Run, losses: list[torch.Tensor], look: Callable[[], dict[str, float]], name: str) -> None:
    mean = float(torch.stack(losses).mean())
    run.points.append({"step": float(run.step), "seconds": run.spent, "loss": mean} | look())
    shown = " ".join(f"{key} {value:.3f}" for key, value in run.points[-1].items() if key not in ("step", "seconds"))
    print(f"{name} {run.step}: {shown} {run.spent:.0f} s", flush=True)


def device_of(name: str) -> dict[str, Any]:
    """Device, and how to compute on it: bf16 beside fp32 master weights on a GPU, fp32 elsewhere."""
    cuda = name == "cuda"
    return {"device": torch.device(name), "autocast": torch.autocast(name, torch.bfloat16, enabled=cuda)}
