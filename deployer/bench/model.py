"""What a bench found, as it is kept in a file: versioned, readable by programs. docs/bench.md describes it for people.

Within format 1 keys are added, never renamed, removed or given another meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployer import __version__
from deployer.errors import UsageError

FORMAT: Literal["ddtree-deploy-bench/1"] = "ddtree-deploy-bench/1"
OWN = "own"


class Part(BaseModel):
    """Common ground: frozen, no other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Percentiles(Part):
    """Over the requests of one cell, in ms."""

    p10: float
    p50: float
    p90: float
    p99: float


class Conditions(Part):
    """Everything that names one cell of a sweep: equal conditions are the same measurement taken again."""

    arm: str = Field(description="ar, mtp:K, chain:K or tree:B; by batch size tree:31@2+15@8")
    prompts: str = Field(description="name of the prompt set")
    prompts_digest: str = Field(description="of the texts as they are sent, or of the options of vLLM's own data set")
    chat_template: bool = Field(description="whether the target's chat template is put around each prompt")
    temperature: str = Field(description="a number, or own: the model's own sampling defaults")
    concurrency: int
    requests: int
    output_tokens: int = Field(description="at most, per request")
    warm_ups: int = Field(description="batches of `concurrency` requests that are not counted, before each cell")
    seed: int = Field(description="of sampling, another one each round; the prompts are the same")
    round: int = Field(description="1, 2, ...: the whole sweep is measured this many times, the arms taking turns")


class CardUse(Part):
    """One GPU while the requests ran, as nvidia-smi saw it once a second; None where it does not say."""

    index: int
    memory_mib: int | None = Field(description="the largest")
    watts: float | None = Field(description="mean")
    sm_mhz: float | None = Field(description="mean clock of the processors")
    celsius: float | None = Field(description="the largest")


class Measurement(Part):
    """What one cell showed. Counters are differences: before the first counted request, after the last."""

    when: str = Field(description="UTC")
    seconds: float = Field(description="from the first request to the last answer")
    load_seconds: float = Field(description="how long the arm's engine took to load and prove itself")
    requests: int
    input_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    ttft: Percentiles = Field(description="time to first token")
    tpot: Percentiles = Field(description="time per output token after the first")
    e2e: Percentiles = Field(description="time from request to last token")
    drafts: int = Field(description="steps of the target that verified a draft")
    acceptance_length: float = Field(description="tokens per step of the target; 1 without drafts")
    accepted_by_depth: tuple[float, ...] = Field(description="share of drafts whose k-th token was accepted, k = 1 ...")
    accepted_by_node: tuple[float, ...] = Field(
        default=(),
        description="share of trees whose i-th node was accepted, i = 1 ... to the last that ever was; in the order in "
        "which they came into the tree, so the first b are what a budget of b would have accepted of the same steps",
    )
    trees: int
    nodes: int = Field(description="tree nodes verified, roots not counted")
    accepted_off_spine: int = Field(description="tree nodes accepted beside the drafter's top-1 chain")
    gpus: tuple[CardUse, ...] = Field(description="empty where there is no nvidia-smi")
    outputs: tuple[str, ...] = Field(description="a digest of each answer's text, in order; only at temperature 0")

    @property
    def off_spine_share(self) -> float | None:
        """Of the accepted drafts; None where none were accepted, or without trees."""
        accepted = (self.acceptance_length - 1) * self.drafts
        return self.accepted_off_spine / accepted if self.trees and accepted else None

    @property
    def step_ms(self) -> float:
        """Time of one step of the target at the median TPOT."""
        return self.tpot.p50 * self.acceptance_length


class Cell(Part):
    """One measurement and what it was measured under."""

    conditions: Conditions
    measured: Measurement


class ArmLine(Part):
    """One way to decode. `tokens` are verified at most in a step: K, or the tree's budget; 0 without drafts."""

    name: str
    title: str
    tokens: int


class Model(Part):
    """A model folder on the host."""

    path: str
    fingerprint: str = Field(
        description="SHA-256 over the list of its files' SHA-256 sums where the deployer pushed it; else over names, "
        "sizes and the contents of its JSON files, not of the weights"
    )


class Machine(Part):
    """The host as it was when it measured."""

    os: str
    kernel: str
    processor: str
    cpus: int
    memory_gib: float
    gpus: tuple[str, ...] = Field(description="each card's name and memory")
    driver: str | None = None


class Subject(Part):
    """What was compared, and on what."""

    host: str
    build: Literal["cpu", "cuda"]
    release: str
    versions: dict[str, str]
    target: Model
    drafter: Model
    machine: Machine


class BenchFile(Part):
    """One sweep."""

    format: Literal["ddtree-deploy-bench/1"] = FORMAT
    made_by: str = Field(default=f"ddtree-deploy {__version__}")
    subject: Subject
    arms: tuple[ArmLine, ...]
    cells: tuple[Cell, ...] = Field(description="what was measured of it until now, in no particular order")


def schema() -> dict[str, Any]:
    """JSON Schema of the file."""
    return BenchFile.model_json_schema(mode="serialization")


def read(path: Path) -> BenchFile:
    """Reads a file that `bench --out` wrote. Raises UsageError that says what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(
            f"the bench's results cannot be read: {why}",
            where=str(path),
            remedy="name a file that `bench HOST --out FILE` wrote",
        ) from error
    try:
        return BenchFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise UsageError(
            f"this is no result of a bench in format {FORMAT}: {place}: {first['msg']}",
            where=str(path),
            remedy="ddtree-deploy bench HOST --out FILE writes one",
        ) from error
