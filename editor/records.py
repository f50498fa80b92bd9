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


class FileSize(Record):
    """One weight file of a model that was read without hashing it."""

    name: str
    n_bytes: int


ZeroCode = Literal["zero", "nf4", "fp4", "offset", "gptq", "gptq_v2", "awq", "ggml"]
"""How a stored weight writes the number zero; see `zero_codes`."""


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
    """Axis of the multiplied-out weight along which the heads lie."""
    code: ZeroCode = "zero"


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
    files: tuple[FileSize, ...]
    """The weight files that the index (or the single file) names."""
    not_covered: tuple[str, ...]
    """Layers without heads that could be edited, each with the reason: coverage is partial."""
    notes: tuple[str, ...] = ()
    """What is in the files but no part of the model that is loaded."""
    n_layers: int | None = None
    """All layers of the model, those without attention included."""

    def heads(self) -> tuple[Head, ...]:
        """All heads in unit order: by layer, then by head."""
        return tuple(Head(at.layer, h) for at in self.layers for h in range(at.n_heads))


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
    """Set the slice [start, stop) of one weight, along one axis, to the code of zero.

    Axis, start and stop count elements of the multiplied-out weight, however it is stored.
    """

    tensor: str
    """The stored tensor whose bytes change."""
    file: str
    axis: Literal[0, 1]
    start: int
    stop: int
    width: int
    """Length of the multiplied-out weight along `axis`."""
    code: ZeroCode = "zero"


class Rows(Record):
    """Byte ranges of a file: the columns [a, b) of `n_rows` rows that follow each other."""

    start: int
    """Offset of the first row from the beginning of the file."""
    row_bytes: int
    n_rows: int
    columns: tuple[tuple[int, int], ...]


class Written(Record):
    """The bytes of one tensor that edits reached."""

    tensor: str
    file: str
    rows: tuple[Rows, ...]
    sha256_before: str
    """Of the bytes in the ranges, in the order of the file, as the base has them."""
    sha256_after: str


class Checkpoint(Record):
    """A baked checkpoint."""

    base_files: tuple[FileDigest, ...]
    """The weight files of the base."""
    files: tuple[FileDigest, ...]
    """Every file of the folder that baking wrote."""
    edits: tuple[TensorEdit, ...]
    written: tuple[Written, ...]
    linked: tuple[str, ...]
    """Weight files that are hard links to the base's."""
    bytes_changed: int
    """Bytes whose value differs from the base."""
    bytes_total: int
    """Bytes of all weight files."""

    def changed(self) -> tuple[FileDigest, ...]:
        """The weight files that differ from the base, as they are now."""
        before = set(self.base_files)
        names = {file.name for file in self.base_files}
        return tuple(at for at in self.files if at.name in names and at not in before)


class Earlier(Record):
    """An edit that the base of another edit had already."""

    tool: str
    base: str
    revision: str | None
    base_files: tuple[FileDigest, ...]
    heads: tuple[HeadText, ...]
    edits: tuple[TensorEdit, ...]
    manifest: str
    """sha256 of that edit's editor.json."""


class RestorePatch(Record):
    """The removed bytes, kept beside the edited checkpoint's folder and never in it."""

    n_bytes: int
    sha256: str


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
    """The base's weight files."""
    heads: tuple[HeadText, ...]
    edits: tuple[TensorEdit, ...]
    written: tuple[Written, ...]
    """The byte ranges of the edits, with the sha256 of what was there and what is there now."""
    files: tuple[FileDigest, ...]
    """The edited checkpoint's files, apart from the editor's own and the card."""
    bytes_changed: int
    bytes_total: int
    not_covered: tuple[str, ...] = ()
    """Layers in which no head could be edited, each with the reason."""
    restore: RestorePatch | None = None
    earlier: tuple[Earlier, ...] = ()
    """Edits that the base had already, the oldest first: this edit composes with them."""
    settings: Settings | None = None
    """None for a bake of given heads, which measured nothing."""
    evaluations: int | None = None
    scan_evaluations: int | None = None
    universal: tuple[HeadText, ...] = ()
    plan: EditPlan | None = None
    validation: Validation | None = None
    times: dict[str, Any]
    """Wall-clock facts, the only part that differs between two runs with one seed."""


class Verified(Record):
    """What `verify` found to be true."""

    output: str
    kind: Literal["edit", "derivative"]
    """Files as an edit wrote them, or files that another program made from such."""
    base: str | None
    """The base that every byte was compared with, or None."""
    heads: tuple[HeadText, ...]
    """Heads that are zero in the files, earlier edits' too."""
    tensors: int
    """Tensors in which they lie."""
    bytes_read: int
    bytes_changed: int | None
    """Bytes that differ from the base, all of them declared; None without a base."""
    shown: tuple[str, ...]
    """What was checked and held, in plain sentences."""
    not_checked: tuple[str, ...]
    """What this check could not tell, and what would."""


class Undone(Record):
    """What `undo` restored."""

    output: str
    base: str
    files: tuple[FileDigest, ...]
    """Every file of the base, each with the sha256 that the base had."""
    left_out: tuple[str, ...]
    """Files of the edited folder that are no part of the base."""


class TensorDifference(Record):
    """One tensor that two checkpoints do not have alike."""

    tensor: str
    kind: Literal["only in A", "only in B", "shape", "dtype", "bytes"]
    a: str
    """Dtype and shape in A, or ""."""
    b: str
    bytes_changed: int | None
    """Of `bytes_total`; None where the two cannot be compared byte by byte."""
    bytes_total: int
    heads: tuple[HeadText, ...]
    """Heads whose slices differ."""
    zeroed: tuple[HeadText, ...]
    """Those among them that are zero in B."""
    beside_heads: bool
    """Whether something outside of all heads differs too."""


class Difference(Record):
    """What two checkpoints do not have alike."""

    a: str
    b: str
    same: bool
    tensors: tuple[TensorDifference, ...]
    tensors_equal: int
    files: tuple[str, ...]
    """Files beside the weights that differ, each with how."""
    notes: tuple[str, ...]


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
