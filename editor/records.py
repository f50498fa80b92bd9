"""Every value that crosses a stage or touches the disk: frozen, validated, digestible.

    Recipe -> ModelSpec -> Design -> Measurement -> Estimate -> EditPlan -> TensorEdit -> Checkpoint
           -> Validation -> Removal

Names used throughout: a *unit* is a flat head index, `n_masks` the number of knocked-out sets,
`X` the design of shape (n_masks, n_units), *effect* = baseline minus score (positive when the head
carries the capability).  Times end in `_s`, sizes in `_bytes`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

Role = Literal["target", "control"]
Metric = Literal["exact", "logprob", "nats_per_token"]
Split = Literal["search", "choose", "test"]
Gate = Literal["pass", "unsure", "fail", "floor", "info"]

_HEAD = re.compile(r"L(\d{1,6})H(\d{1,6})", re.ASCII)


class Head(NamedTuple):
    """One query head; `L16H21` as text, everywhere."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `L16H21`.

        Raises:
            ValueError: `text` has another form.
        """
        match = _HEAD.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"a head is written like L16H21, not {text!r}")
        return cls(int(match[1]), int(match[2]))


Mask = tuple[Head, ...]
"""The heads that are knocked out together; () is the model as it is."""


def _as_head(value: object) -> object:
    return Head.parse(value) if isinstance(value, str) else value


HeadText = Annotated[
    Head, BeforeValidator(_as_head), PlainSerializer(lambda head: str(Head(*head)), return_type=str)
]
"""A `Head` that is a string in JSON."""


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def canonical(self) -> str:
        """The record as JSON with sorted keys and no spaces: the text that is digested."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """sha256 of `canonical()`, in hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


class FileDigest(Record):
    """One file of a checkpoint."""

    name: str
    """Path relative to the checkpoint's folder, with forward slashes."""
    n_bytes: int
    sha256: str


class AttentionLayer(Record):
    """Where the heads of one attention layer live: slices of its output projection.

    Head h is the slice [h * head_dim, (h + 1) * head_dim) of the projection's input: columns
    (axis 1) of a Linear's weight (out, in), rows (axis 0) of a Conv1D's (in, out).
    """

    layer: int
    module: str
    """Dotted path of the projection module in the loaded model."""
    tensor: str
    """Name of the projection's weight in the checkpoint's files."""
    file: str
    n_heads: int
    head_dim: int
    axis: Literal[0, 1]


class ModelSpec(Record):
    """What is known of a checkpoint without loading it."""

    source: str
    """The resolved name: a Hub id, a package's file, or a local folder's name."""
    revision: str | None
    model_type: str
    dtype: str
    """The projection's type as safetensors writes it: BF16, F16, F32, ..."""
    hidden_size: int
    n_kv_heads: int
    tied: bool
    """Whether the output embedding shares the input embedding's tensor."""
    layers: tuple[AttentionLayer, ...]
    files: tuple[FileDigest, ...]
    """The weight files that the index (or the single file) names."""
    not_covered: tuple[str, ...]
    """Layers without heads that could be edited, each with the reason."""

    def heads(self) -> tuple[Head, ...]:
        """All heads in unit order: by layer, then by head."""
        return tuple(Head(at.layer, h) for at in self.layers for h in range(at.n_heads))

    def weights_digest(self) -> str:
        """sha256 over the weight files' names and digests: the identity of the weights."""
        text = "\n".join(f"{file.name} {file.sha256}" for file in self.files)
        return hashlib.sha256(text.encode()).hexdigest()


class Item(Record):
    """One question of a capability."""

    key: str
    """What the item is about; items with the same key fall into the same split."""
    prompt: str
    answer: str
    """The right continuation of `prompt`, with its leading space where it has one."""
    variant: str
    """The form of the question: a phrasing, a number of digits."""
    transfer: bool = False
    """Kept out of search and choice: the same ability in another form."""


class Design(Record):
    """Which heads each mask knocks out."""

    sampler: str
    seed: int
    n_units: int
    rows: tuple[tuple[int, ...], ...]
    """Sorted unit indices, one tuple a mask."""


class Scores(Record):
    """One task's per-item scores under one mask, in the order of the task's items."""

    exact: tuple[float, ...]
    """1 when the greedy continuation is the answer; for text, the share of tokens so predicted."""
    logprob: tuple[float, ...]
    """Log-probability of the whole answer, in nats."""
    n_tokens: tuple[int, ...]
    """Tokens of the answer."""


class Measurement(Record):
    """One mask on one task: a line of the journal."""

    mask: tuple[HeadText, ...]
    task: str
    items: str
    """Digest of the items and their order."""
    scores: Scores
    elapsed_s: float


class HeadEffect(Record):
    """What one head does to one task."""

    head: HeadText
    effect: float
    """Baseline minus score: positive when the task needs the head (in the score's unit)."""
    low: float
    high: float
    """Ends of the 95 % interval."""
    n_masks: int
    """How many masks knocked the head out."""


class Estimate(Record):
    """Effects of the heads on one task."""

    task: str
    score: Metric
    solver: str
    n_masks: int
    fit_r2: float | None
    """Held-out R^2 of the additive model, or None where it was not computed."""
    effects: tuple[HeadEffect, ...]
    """Sorted by effect, largest first."""


class UniversalHeads(Record):
    """The heads that every text needs: found once a model, kept out of the masks."""

    checkpoint: str
    """`Fingerprint.checkpoint` of the model they were found on."""
    threshold: float
    """Cost in nats a token, on any text control, from which a head counts as universal."""
    evaluations: int
    effects: tuple[Estimate, ...]
    """Cost of every head on every text control, in nats a token."""
    heads: tuple[HeadText, ...]
    elapsed_s: float


class Predicted(Record):
    """What the choice expects of one task, from the choose split."""

    task: str
    metric: Metric
    base: float
    edited: float


class EditPlan(Record):
    """The heads that were chosen, and why."""

    capability: str
    heads: tuple[HeadText, ...]
    """In the order in which they were chosen, the costliest first."""
    predicted: tuple[Predicted, ...]
    evaluations: int
    """Masks on which the capability was scored, search and choice together."""
    why: str


class TensorEdit(Record):
    """Zero the slice [start, stop) of one tensor along one axis."""

    tensor: str
    file: str
    axis: Literal[0, 1]
    start: int
    stop: int


class Checkpoint(Record):
    """A baked checkpoint."""

    files: tuple[FileDigest, ...]
    """Every file of the folder that baking wrote."""
    changed: tuple[FileDigest, ...]
    """The weight files that differ from the base, as they are now."""
    edits: tuple[TensorEdit, ...]
    bytes_changed: int
    """Bytes whose value differs from the base."""
    bytes_total: int
    """Bytes of all weight files."""


class Result(Record):
    """One task and metric, base against edited, paired by item."""

    task: str
    role: Role
    metric: Metric
    n: int
    base: float
    edited: float
    change: float
    """edited - base"""
    ci: tuple[float, float]
    """95 % interval of the change, paired bootstrap over the items."""
    limit: float | None
    """The worst change allowed, in the sign of `change`: a control's `exact` may not fall below it,
    a text's `nats_per_token` not rise above it, a target's `exact` must fall to it or below.  None
    where the row is only reported."""
    gate: Gate
    """pass: the whole interval is inside the limit; unsure: the change is, its interval is not;
    fail: the change is outside; floor: the base is too near the floor to tell; info: no limit."""


class CurvePoint(Record):
    """The target after the first k chosen heads, against random heads of the same layers."""

    k: int
    chosen: float
    chosen_ci: tuple[float, float]
    random: tuple[float, ...]
    """One value a random set."""


class Sample(Record):
    """What base and edited model say to the same prompt."""

    task: str
    prompt: str
    answer: str
    base: str
    edited: str


class Validation(Record):
    """Base files against edited files."""

    results: tuple[Result, ...]
    items: dict[str, str]
    """sha256 of each task's items and their order, by the task's name."""
    curve: tuple[CurvePoint, ...]
    curve_task: str
    samples: tuple[Sample, ...]
    masked_vs_baked: float
    """Largest difference in log-probability, over the target's items, between the base with the
    heads masked and the edited files: 0 when both are the same computation."""
    accepted: bool
    reasons: tuple[str, ...]
    """Why it was not accepted, or what an acceptance does not cover."""


class Settings(Record):
    """The recipe as it was run: everything that changes a number, nothing that does not."""

    capability: str
    controls: tuple[str, ...]
    max_heads: int
    max_control_drop: dict[str, float]
    min_target_drop: float
    method: str
    seed: int
    search_items: int
    choose_items: int
    test_items: int
    dtype: str


class Fingerprint(Record):
    """Everything that decides a run's numbers: two runs that agree in it share a journal."""

    version: str
    model: str
    checkpoint: str
    """sha256 over the digests of the weights, the config and the tokenizer."""
    settings: Settings


class Manifest(Record):
    """`editor.json`: what was done to the base, and what it measured."""

    schema_version: int
    tool: str
    model: str
    """The model as it was asked for; of a local path only the last part."""
    base: str
    """The model's resolved name."""
    revision: str | None
    base_files: tuple[FileDigest, ...]
    heads: tuple[HeadText, ...]
    edits: tuple[TensorEdit, ...]
    files: tuple[FileDigest, ...]
    bytes_changed: int
    bytes_total: int
    settings: Settings | None = None
    """None for a bake of given heads, which measured nothing."""
    evaluations: int | None = None
    scan_evaluations: int | None = None
    universal: tuple[HeadText, ...] = ()
    plan: EditPlan | None = None
    validation: Validation | None = None
    times: dict[str, Any]
    """Wall-clock facts, the only part that differs between two runs with one seed."""


class Localization(Record):
    """What `localize` returns."""

    run: str
    """The run's folder."""
    heads: tuple[HeadText, ...]
    evaluations: int
    """Masks on which the capability was scored, search and choice together."""
    scan_evaluations: int
    """Masks of the once-a-model scan for universal heads, which the cache may have spared."""
    universal: UniversalHeads
    estimates: tuple[Estimate, ...]
    plan: EditPlan


class Removal(Record):
    """What `remove` returns and `--json` prints."""

    output: str
    run: str
    report: str
    capability: str
    model: str
    heads: tuple[HeadText, ...]
    evaluations: int
    scan_evaluations: int
    accepted: bool
    reasons: tuple[str, ...]
    results: tuple[Result, ...]
    bytes_changed: int
    bytes_total: int
    elapsed_s: float
