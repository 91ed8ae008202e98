"""What `tune` found, as `--json` carries it. docs/tune.md describes it for people."""

from __future__ import annotations

from pydantic import Field

from deployer.bench.model import Part
from deployer.inventory.tiers import Table
from deployer.serve.tuned import Kind


class Seen(Part):
    """One arm at one number of requests, over all prompts, temperatures and rounds."""

    arm: str
    tokens: int = Field(description="verified beside each request's own in a step")
    output_tokens_per_second: float
    low: float = Field(description="of the slowest round")
    high: float = Field(description="of the fastest round")
    step_ms: float = Field(description="of the target: median TPOT times acceptance length")
    acceptance_length: float = Field(description="tokens a step")


class Trial(Part):
    """Arms beside each other at one number of requests at a time."""

    concurrency: int
    doubt: float = Field(description="a ratio of two arms up to this may be chance")
    seen: tuple[Seen, ...]

    def speed(self, arm: str) -> float:
        """Output tokens a second of one that was measured."""
        return next(one.output_tokens_per_second for one in self.seen if one.arm == arm)


class Pick(Trial):
    """What is chosen there."""

    arm: str = Field(description="whose tokens are verified, among the arms of the chosen engine")
    tokens: int
    fastest: str = Field(description="of all that was measured, whether the chosen engine can do it or not")
    equals: tuple[str, ...] = Field(description="arms that cannot be told from the fastest")


class Choice(Part):
    """By the first measurement: one engine, and its tokens by batch size."""

    arm: str = Field(description="as `bench --arms` takes it: tree:31@2+15@8, chain:7, ar")
    picks: tuple[Pick, ...]


class Curve(Part):
    """What every budget up to the widest tree's would have accepted of that tree's steps."""

    arm: str
    acceptance_lengths: tuple[float, ...] = Field(description="tokens a step with a budget of 1, 2, ...")
    largest_error: float | None = Field(
        description="largest relative difference from what a smaller tree accepted when it was measured; null without one"
    )


class Guess(Part):
    """A budget that was not measured and should be faster, by more than chance, than every tree that was."""

    concurrency: int
    tokens: int
    beside: str = Field(description="the fastest tree that was measured there")
    gain: float = Field(description="times its speed")


class Tuning(Part):
    """All of it. `arm` is what is to be served: the choice, or what turned out not to be slower and is simpler."""

    choice: Choice
    trials: tuple[Trial, ...] = Field(
        description="empty where nothing beat plain decoding: there is nothing to confirm"
    )
    arm: str
    kind: Kind
    tokens: int
    table: Table
    curve: Curve | None = Field(description="null without a tree that counts its nodes")
    guesses: tuple[Guess, ...]
    sentences: tuple[str, ...]
    file: str = Field(description="where serve reads it")
