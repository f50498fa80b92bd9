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

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

Role = Literal["target", "control"]
Metric = Literal["exact", "logprob", "nats_per_token"]
View = Literal["logprob", "exact"]
"""What a search looks at: the answers' log-probability, or how many are right."""
Prior = Literal["gradient", "none"]
Split = Literal["search", "choose", "test"]
Chat = Literal["auto", "never", "always"]
"""Whether messages are written by the model's chat template: where it has one, not at all, or else
nothing is measured."""
Thinking = Literal["off", "closed", "skipped", "none"]
"""off: by the template's own switch; closed: the thought that the template begins is ended at once;
skipped: what is written up to its end is not judged; none: the template knows no thoughts."""
Gate = Literal["pass", "unsure", "fail", "floor", "info"]
FormKind = Literal["format", "capability", "undecided"]

Fill = Literal["zero", "mean"]
"""What stands in the place of a head that is out at run time; in files it is always zero."""

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


class Turn(Record):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


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
    choices: tuple[str, ...] = ()
    """All answers that are offered, the right one among them, where some are."""
    check: str = ""
    """What tells whether a written text is right, where no answer does: unit tests, a pattern."""
    split: Split | None = None
    """Where the item's source says it; else the hash of `key` does."""
    turns: tuple[Turn, ...] = ()
    """The question as messages, where it has that form; `prompt` is its plain form until a chat
    template has written it."""

    def canonical(self) -> str:
        """As of every record; what few items have is left out of the others, which keep digests."""
        fields = self.model_dump(mode="json")
        for name in ("choices", "check", "split", "turns"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))


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
    form: tuple[float, ...] | None = None
    """Log-probability that any answer of the capability begins, in nats; None where the scorer has
    no such class, or the journal is from before there was one."""
    first: tuple[float, ...] | None = None
    """Log-probability of the right answer up to the token in which the answers part."""
    faults: tuple[str, ...] | None = Field(default=None, exclude_if=lambda found: found is None)
    """What is wrong with each written text, "" where nothing is; None where none was asked for."""

    def fits(self, n_items: int) -> bool:
        """Whether there is one of each for every item."""
        found = (self.exact, self.logprob, self.n_tokens, self.form, self.first, self.faults)
        return all(one is None or len(one) == n_items for one in found)


class Measurement(Record):
    """One mask on one task: a line of the journal."""

    mask: tuple[HeadText, ...]
    task: str
    items: str
    """Digest of the items and their order."""
    scores: Scores | None
    """None where a score is not a number: such a mask tells nothing."""
    elapsed_s: float
    fill: Fill = "zero"


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
    probability: float | None = None
    """That the head is one of the few that matter; None where no posterior was fitted."""
    decided: bool = False
    """Whether that is sure enough, and stands out from what chance alone would show."""


class Rival(Record):
    """What another estimator says of the same masks."""

    solver: str
    heads: tuple[HeadText, ...]
    """Its first heads, the costliest first."""


class Estimate(Record):
    """Effects of the heads on one task."""

    task: str
    score: Metric
    solver: str
    n_masks: int
    fit_r2: float | None
    """Held-out R^2 of the additive model, or None where it was not computed."""
    effects: tuple[HeadEffect, ...]
    """The head that is expected to matter most comes first."""
    rivals: tuple[Rival, ...] = ()
    not_numbers: tuple[tuple[HeadText, ...], ...] = ()
    """Masks under which a score is not a number: the others tell the effects."""


class Confidence(Record):
    """How far the search got, and how sure it is."""

    level: float
    """The probability from which a head counts as decided."""
    decided: tuple[HeadText, ...]
    """Heads of the kind that is looked for, the largest effect first: those that the task needs, or
    where it is to improve, those without which it does better."""
    helped: tuple[HeadText, ...] = ()
    """Heads of the other kind."""
    undecided: tuple[HeadText, ...]
    """Heads that may be needed: more measurements would tell."""
    not_ruled_out: int = 0
    """How many others could, by their intervals, matter as much as the least of those decided."""
    universal: tuple[HeadText, ...] = ()
    """Heads that the search came upon and that all text needs: asked only where no scan was."""
    groups: tuple[tuple[HeadText, ...], ...]
    """Heads that the masks cannot tell apart: one of each group is needed."""
    chance_z: float
    """Standard errors that no head passes by chance in 19 of 20 searches."""
    evaluations: int
    rounds: int
    stopped: str
    """Why no more was measured."""
    sentence: str


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


class Measured(Record):
    """A mean over items, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


class Added(Record):
    """One step of the choice."""

    head: HeadText
    gain: float
    """What it adds to the target's loss with the heads chosen before it already out: share of
    answers lost, plus a tenth for each nat.  Where the target is to get better, what it wins."""
    alone: float
    """The same with nothing else out.  A stand-in for another head costs little alone."""
    beyond: Measured | None = None
    """The first less the second; None for the first head."""


class EditPlan(Record):
    """The heads that were chosen, and why."""

    capability: str
    heads: tuple[HeadText, ...]
    """In the order in which they were chosen."""
    steps: tuple[Added, ...] = ()
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
    rise: bool = False
    """The change must lie above the limit instead: a target that is to get better."""
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


class FormLoss(Record):
    """What of a loss is the form of the answers, and what is the answer itself.

    In nats an item, positive where something is lost, each with the ends of its 95 % interval
    (paired bootstrap, items with one key resampled together).  Only the beginning of the answer is
    split: up to the first token in which the capability's answers differ.
    """

    form: float
    """Lost because answers of the capability, right or wrong, give way to something else."""
    form_low: float
    form_high: float
    right: float
    """Lost because the right answer gives way to others of the capability."""
    right_low: float
    right_high: float
    after: float
    """Lost log-probability of the right answer's later tokens, which are not split."""
    share: float | None
    """form / (form + right), or None where too little is lost to tell."""
    share_low: float | None
    share_high: float | None
    kind: FormKind
    """format: the whole interval of the share is above one half; capability: it is below; else
    undecided."""


class FormEffect(FormLoss):
    """What a head's removal takes: `FormLoss`."""

    head: HeadText


class FormatCheck(Record):
    """Whether the chosen heads carry the capability or only the form of its answers."""

    task: str
    heads: tuple[HeadText, ...]
    """The chosen ones."""
    whole: FormLoss
    """With all of them removed."""
    steps: tuple[FormEffect, ...]
    """What each chosen head adds to the loss under those chosen before it."""
    effects: tuple[FormEffect, ...]
    """What each candidate takes alone."""
    sentence: str


class FaultCounts(Record):
    """How many written answers are none."""

    refusal: int
    loop: int
    gibberish: int
    empty: int

    @property
    def broken(self) -> int:
        """All but the refusals: the model does not write any more."""
        return self.loop + self.gibberish + self.empty


class WrittenFaults(Record):
    """What is wrong with the texts that the base and the edited model wrote for the target."""

    n: int
    base: FaultCounts
    edited: FaultCounts
    lost: int
    """Items that score lower after the edit."""
    lost_faulty: int
    """Of those, with a fault that the base's text did not have."""


class TargetCurve(Record):
    """A further target of an edit that removes several."""

    task: str
    curve: tuple[CurvePoint, ...]
    format_loss: FormLoss | None = None
    written: WrittenFaults | None = Field(default=None, exclude_if=lambda found: found is None)


class Validation(Record):
    """Base files against edited files."""

    results: tuple[Result, ...]
    items: dict[str, str]
    """sha256 of each task's items and their order, by the task's name."""
    curve: tuple[CurvePoint, ...]
    curve_task: str
    samples: tuple[Sample, ...]
    format_loss: FormLoss | None = None
    """What of the target's loss is lost form; None where its scorer cannot tell."""
    also: tuple[TargetCurve, ...] = ()
    """The same of further targets."""
    written: WrittenFaults | None = Field(default=None, exclude_if=lambda found: found is None)
    """Refusals, loops and the like among the target's texts; None where it asks for none."""
    masked_vs_baked: float
    """Largest difference in log-probability, over the target's items, between the base with the
    heads masked and the edited files: 0 when both are the same computation."""
    accepted: bool
    reasons: tuple[str, ...]
    """Why it was not accepted, or what an acceptance does not cover."""


class Settings(Record):
    """The recipe as it was run: everything that changes a number, nothing that does not."""

    capability: str
    also: tuple[str, ...] = Field(default=(), exclude_if=lambda found: not found)
    """Further capabilities that the same edit removes; not written where there are none."""
    controls: tuple[str, ...]
    max_heads: int
    max_control_drop: dict[str, float]
    min_target_drop: float
    method: str
    budget: int | None = None
    confidence: float = 0.95
    score: View = "logprob"
    prior: Prior = "gradient"
    universal: str = "scan"
    improve: bool = False
    seed: int
    search_items: int
    choose_items: int
    test_items: int
    dtype: str
    definitions: dict[str, str] = Field(default={}, exclude_if=lambda found: not found)
    """By name the sha256 of each capability that a file of the user's defines."""
    data: dict[str, str] = Field(default={}, exclude_if=lambda found: not found)
    """By name the sha256 of each data set that items come from."""
    chat: Chat = Field(default="auto", exclude_if=lambda found: found == "auto")
    """What the recipe says of messages."""
    chat_template: str = Field(default="", exclude_if=lambda found: not found)
    """sha256 of the chat template that wrote prompts; not written where none did."""

    @property
    def targets(self) -> tuple[str, ...]:
        """All capabilities to remove, in the order in which heads are chosen for them."""
        return (self.capability, *self.also)


class ChatUse(Record):
    """How prompts were put to the model."""

    template: str | None
    """sha256 of the model's chat template; None where it has none."""
    used: bool
    """Whether it wrote the prompts of items that are messages."""
    why: str
    """Why it was used or was not, as a sentence."""
    thinking: Thinking
    first_prompt: tuple[int, ...]
    """Token ids of the first prompt of the search."""


class Fingerprint(Record):
    """Everything that decides a run's numbers: two runs that agree in it share a journal."""

    version: str
    model: str
    checkpoint: str
    """sha256 over the digests of the weights, the config and the tokenizer."""
    settings: Settings


class Interaction(Record):
    """What two heads cost together beyond what they cost alone, in nats an item."""

    heads: tuple[HeadText, HeadText]
    alone: tuple[float, float]
    """Loss of log-probability with the one out, and with the other."""
    together: float
    interaction: Measured
    """together - the sum of the two alone; the intervals of all pairs hold at once."""
    n_items: int
    """Items that can tell: where the answer is not gone both by the sum of the two alone and by the
    two together."""
    kind: Literal["needs_both", "redundant", "none", "too_few"]
    """needs_both: surely more together than the two alone; redundant: surely less; too_few: hardly
    an item can tell."""


class MeanAblated(Record):
    """All chosen heads at their mean output instead of zero."""

    base_exact: float
    exact_lost_zero: Measured
    """Share of right answers that zero takes."""
    exact_lost_mean: Measured
    nats_lost_zero: Measured
    """Loss of log-probability an item, of each at most `search.DEEPEST_LOSS`."""
    nats_lost_mean: Measured
    share: Measured | None
    """nats_lost_mean / nats_lost_zero; None where zero does not surely cost something."""
    verdict: Literal["not_artefact", "partly", "artefact", "unclear"]
    """Whether the effect comes from the number zero: not if half of it surely remains."""


class RandomSet(Record):
    """Random heads of the layers of the chosen ones."""

    heads: tuple[HeadText, ...]
    loss: float
    """Loss of log-probability an item, of each at most `search.DEEPEST_LOSS`."""


class RandomSets(Record):
    """The chosen heads against random ones."""

    chosen: float
    """Loss with the chosen heads out, as that of a set."""
    sets: tuple[RandomSet, ...]
    n_near: int
    """Sets that cost at least half of what the chosen ones cost."""
    n_as_costly: int
    """Sets that cost as much or more; like `n_near`, where the target is to get better, sets that
    give so much."""
    p_value: float
    """(1 + n_as_costly) / (1 + number of sets)."""


class Confirmation(Record):
    """Checks on the chosen heads, on questions of the choice."""

    task: str
    heads: tuple[HeadText, ...]
    """The chosen heads, in the order in which they were chosen."""
    n_items: int
    evaluations: int
    """Masks that were scored for the checks alone."""
    alone: tuple[HeadEffect, ...]
    """Each of the first chosen heads alone, in nats an item."""
    interactions: tuple[Interaction, ...]
    """All pairs of those."""
    mean_ablated: MeanAblated | None
    """None where answers are written: no mean is put into what the model writes."""
    random_sets: RandomSets | None
    """None where no layer of the chosen heads has another head."""


class HeadTake(Record):
    """What a head takes of each of several targets: share of answers plus a tenth for each nat."""

    head: HeadText
    alone: dict[str, Measured]
    """By target, with nothing else out."""
    last: dict[str, Measured]
    """By target, with all other chosen heads out before it."""


class Sharing(Record):
    """Which heads several targets of one edit share."""

    heads: dict[str, tuple[HeadText, ...]]
    """By target: the heads that were chosen for it, and those of the others that surely take
    something of it too, alone or as the last."""
    shared: tuple[HeadText, ...]
    """Heads of more than one target."""
    takes: tuple[HeadTake, ...]
    """All chosen heads, in the order in which they were chosen."""


class Part(Record):
    """What was found of one target of an edit that removes several."""

    plan: EditPlan
    """Its heads are those of `Sharing.heads`; its steps those that were chosen for it, or out then
    and seen to take something."""
    estimates: tuple[Estimate, ...] = ()
    """Left out of editor.json."""
    confidence: Confidence | None = None
    format_check: FormatCheck | None = None
    confirmation: Confirmation | None = None


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
    over_limit: tuple[HeadText, ...] = ()
    """Other heads that the search left out: each alone costs a text more than its limit."""
    not_numbers: dict[str, tuple[tuple[HeadText, ...], ...]] = Field(
        default={}, exclude_if=lambda found: not found
    )
    """By task the masks under which a score of the search or the scan is not a number."""
    confidence: Confidence | None = None
    """None where the method of the search does not tell."""
    plan: EditPlan | None = None
    confirmation: Confirmation | None = None
    validation: Validation | None = None
    format_check: FormatCheck | None = None
    also: tuple[Part, ...] = ()
    """Further targets; heads and evaluations are all targets' together, the rest is the first's."""
    sharing: Sharing | None = None
    """None where one capability was removed."""
    chat: ChatUse | None = None
    """None for a bake of given heads, which asked nothing."""
    times: dict[str, Any]
    """Wall-clock facts, the only part that differs between two runs with one seed."""

    def each(self) -> tuple[Manifest, ...]:
        """The record as it would be for each target alone; heads and results stay those of all."""
        settings, validation = self.settings, self.validation
        if settings is None or not settings.also:
            return (self,)
        curves = {at.task: at for at in validation.also} if validation else {}

        def one(name: str, part: Manifest | Part) -> Manifest:
            at, measured = curves.get(name), validation
            if measured and at:
                drawn = {"curve": at.curve, "curve_task": name, "format_loss": at.format_loss}
                drawn |= {"written": at.written}
                measured = measured.model_copy(update={**drawn, "also": ()})
            return self.model_copy(
                update={
                    **{field: getattr(part, field) for field in _OF_PART},
                    "settings": settings.model_copy(update={"capability": name, "also": ()}),
                    "validation": measured,
                    "also": (),
                    "sharing": None,
                }
            )

        return tuple(map(one, settings.targets, (self, *self.also)))


_OF_PART = ("plan", "confidence", "format_check", "confirmation")


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
    improve: bool = False
    """The heads are those without which the capability gets better."""
    evaluations: int
    """Masks on which the capability was scored, search and choice together."""
    scan_evaluations: int
    """Masks of the once-a-model scan for universal heads, which the cache may have spared."""
    universal: UniversalHeads
    over_limit: tuple[HeadText, ...] = ()
    """Other heads that were kept out of the search: each alone costs a text more than its limit."""
    estimates: tuple[Estimate, ...]
    plan: EditPlan
    confidence: Confidence | None = None
    format_check: FormatCheck | None = None
    """None where the capability's answers have no form apart from the right one."""
    confirmation: Confirmation | None = None
    also: tuple[Part, ...] = ()
    """Further targets; heads and evaluations are all targets' together, the rest is the first's."""
    sharing: Sharing | None = None
    """None where one capability was searched for."""

    @property
    def not_numbers(self) -> dict[str, tuple[Mask, ...]]:
        """By task the masks under which a score is not a number, where there are any."""
        own = [at for one in self.each() for at in one.estimates]
        found = [(at.task, at.not_numbers) for at in (*own, *self.universal.effects)]
        names = dict.fromkeys(task for task, masks in found if masks)
        return {
            name: tuple(
                dict.fromkeys(mask for task, masks in found if task == name for mask in masks)
            )
            for name in names
        }

    def each(self) -> tuple[Localization, ...]:
        """The record as it would be for each target alone."""
        if not self.also:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    **{name: getattr(part, name) for name in ("estimates", *_OF_PART)},
                    "heads": part.plan.heads,
                    "evaluations": part.plan.evaluations,
                    "also": (),
                    "sharing": None,
                }
            )
            for part in (self, *self.also)
        )


class Removal(Record):
    """What `remove` returns and `--json` prints."""

    output: str
    run: str
    report: str
    capability: str
    """What was removed; several with commas between them."""
    model: str
    heads: tuple[HeadText, ...]
    sharing: Sharing | None = None
    """None where one capability was removed."""
    chat: ChatUse | None = None
    evaluations: int
    scan_evaluations: int
    accepted: bool
    reasons: tuple[str, ...]
    results: tuple[Result, ...]
    bytes_changed: int
    bytes_total: int
    elapsed_s: float


class TopShare(Record):
    """What the k strongest heads of a run hold of all that was told from zero."""

    k: int
    of_heads: float
    """k as a share of all heads of the model."""
    share: float
    """Of the sum of the effects that are told from zero; 1 when k is more than there are."""
    ci: tuple[float, float]
    """95 % interval for these same k heads; see `concentration.tally`."""
    of_positive: float
    """The k largest effects as a share of all positive ones, noise among them."""


class Concentration(Record):
    """How few heads hold a capability, in one run."""

    label: str
    """A, B, ...: what the run is called in the other records of the comparison."""
    run: str
    """The run's folder."""
    model: str
    checkpoint: str
    """`Fingerprint.checkpoint`."""
    capability: str
    method: str
    score: Metric
    solver: str
    n_heads: int
    """All heads of the model."""
    n_left_out: int
    """Heads that are in no share: all text needs them, or they cost a text more than its limit."""
    n_measured: int
    """All other heads with an effect."""
    n_told: int
    """Heads whose interval lies above zero, or that a posterior makes likely: they make up the
    total."""
    n_hindering: int
    """Heads told from zero on the other side: without them the model does better."""
    n_open: int
    """Heads that are not told from zero."""
    total: float
    """Sum of the effects told from zero, in the score's unit."""
    shares: tuple[TopShare, ...]
    """For every k up to `n_told`, and for those of `concentration.KS` above it."""
    half: int | None
    """How many heads hold half of the total; None when none is told from zero."""
    half_ci: tuple[int, int] | None
    half_of_heads: float | None
    """`half` as a share of all heads of the model."""
    chosen: tuple[HeadText, ...]
    """The heads that the run chose to remove, in that order."""


class Contrast(Record):
    """How much more of a capability the strongest heads hold in one model than in another."""

    a: str
    b: str
    """Labels of two runs for the same capability on different models."""
    k_a: int
    k_b: int
    difference: float
    """Share of the k_a strongest heads of A minus that of the k_b strongest of B."""
    ci: tuple[float, float]
    """95 % interval."""


class Overlap(Record):
    """The heads that two sets share, against sets drawn by chance."""

    n_a: int
    n_b: int
    heads: tuple[HeadText, ...]
    expected: float
    """How many two random sets of these sizes share on average."""
    p: float
    """Probability that they share at least as many (hypergeometric)."""


class SharedHeads(Record):
    """What two runs on the same model have in common, among the heads measured in both."""

    a: str
    b: str
    n_common: int
    """Heads measured in both."""
    chosen: Overlap
    """Of the heads that the runs chose to remove."""
    top: Overlap
    """Of each run's largest effects told from zero, at most `comparison.N_TOP`."""
    rank_correlation: float | None
    """Spearman's, of all effects; None where one run has no two different effects."""


class Comparison(Record):
    """What `compare` returns."""

    runs: tuple[Concentration, ...]
    contrasts: tuple[Contrast, ...]
    pairs: tuple[SharedHeads, ...]
    notes: tuple[str, ...]
    """How the numbers were made and what they must not be taken for, as sentences."""
