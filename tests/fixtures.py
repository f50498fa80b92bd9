"""Records made by hand, shaped like those of a real run, for tests of whatever reads records."""

from __future__ import annotations

import numpy as np

from editor.records import (
    Added,
    AttentionLayer,
    Confidence,
    Confirmation,
    CurvePoint,
    EditPlan,
    Estimate,
    FileDigest,
    FileSize,
    FormatCheck,
    FormEffect,
    FormKind,
    FormLoss,
    Head,
    HeadEffect,
    Interaction,
    Manifest,
    MeanAblated,
    Measured,
    ModelSpec,
    Predicted,
    RandomSet,
    RandomSets,
    RestorePatch,
    Result,
    Rival,
    Rows,
    Sample,
    Settings,
    TensorEdit,
    UniversalHeads,
    Validation,
    Written,
)

CHOSEN = tuple(map(Head.parse, ("L23H4", "L21H7", "L6H7", "L3H2", "L17H6")))
UNIVERSAL = tuple(map(Head.parse, ("L0H3", "L1H0", "L1H3", "L1H4", "L1H5", "L2H2", "L8H8")))
BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
REVISION = "7e27bd9f95328f0f3b08261d1252705110c806f8"
HEAD_DIM = 64
WEIGHTS = FileDigest(name="model.safetensors", n_bytes=269_060_552, sha256="5a" * 32)


def make_spec(n_layers: int = 30, n_heads: int = 9) -> ModelSpec:
    return ModelSpec(
        source=BASE,
        revision=REVISION,
        model_type="llama",
        dtype="BF16",
        hidden_size=n_heads * HEAD_DIM,
        n_kv_heads=3,
        tied=True,
        layers=tuple(
            AttentionLayer(
                layer=layer,
                module=f"model.layers.{layer}.self_attn.o_proj",
                tensor=f"model.layers.{layer}.self_attn.o_proj.weight",
                file="model.safetensors",
                n_heads=n_heads,
                head_dim=HEAD_DIM,
                axis=1,
            )
            for layer in range(n_layers)
        ),
        files=(FileSize(name=WEIGHTS.name, n_bytes=WEIGHTS.n_bytes),),
        not_covered=(),
    )


def make_estimate(
    task: str,
    spec: ModelSpec | None = None,
    *,
    strong: dict[Head, float] | None = None,
    left_out: tuple[Head, ...] = (),
    scale: float = 0.05,
    seed: int = 0,
) -> Estimate:
    """Small random effects for all heads of `spec`, apart from the `strong` ones."""
    rng = np.random.default_rng(seed)
    effects: list[HeadEffect] = []
    for head in (spec or make_spec()).heads():
        effect = (strong or {}).get(head, float(rng.normal(0, scale)))
        if head not in left_out:
            effects.append(
                HeadEffect(
                    head=head, effect=effect, low=effect - scale, high=effect + scale, n_masks=3
                )
            )
    effects.sort(key=lambda at: -at.effect)
    return Estimate(
        task=task,
        score="logprob" if task == "recall" else "nats_per_token",
        solver="pools",
        n_masks=112,
        fit_r2=0.61 if task == "recall" else None,
        effects=tuple(effects),
    )


def make_estimates(spec: ModelSpec | None = None) -> tuple[Estimate, ...]:
    """The target's estimate: the chosen heads in front, universal and two more heads unmeasured."""
    strong = dict(zip(CHOSEN, (1.14, 0.61, 0.4, 0.31, 0.22), strict=True))
    left_out = (*UNIVERSAL, Head(12, 0), Head(12, 1))
    return (make_estimate("recall", spec, strong=strong, left_out=left_out),)


def make_universal(spec: ModelSpec | None = None) -> UniversalHeads:
    strong = dict(zip(UNIVERSAL, (0.12, 0.13, 0.32, 0.25, 0.61, 0.14, 0.11), strict=True))
    return UniversalHeads(
        checkpoint="f1" * 32,
        threshold=0.1,
        evaluations=270,
        effects=tuple(
            make_estimate(task, spec, strong=strong, scale=0.015, seed=seed)
            for seed, task in enumerate(("english", "python"))
        ),
        heads=UNIVERSAL,
        elapsed_s=141.0,
    )


def make_results(*, failed: bool = False) -> tuple[Result, ...]:
    """Rows of every gate; `failed` makes addition lose more than it may."""

    def result(task: str, metric: str, n: int, values: tuple[float, ...], gate: str) -> Result:
        base, edited, low, high, *limit = values
        return Result.model_validate(
            {
                "task": task,
                "role": "target" if task.startswith("recall") else "control",
                "metric": metric,
                "n": n,
                "base": base,
                "edited": edited,
                "change": edited - base,
                "ci": (low, high),
                "limit": limit[0] if limit else None,
                "gate": gate,
            }
        )

    return (
        result("copying", "exact", 80, (0.78, 0.75, -0.08, 0.02, -0.1), "pass"),
        result("recall", "exact", 120, (0.575, 0.008, -0.65, -0.475, -0.3), "pass"),
        result("recall", "logprob", 120, (-1.21, -4.98, -4.2, -3.35), "info"),
        result("recall_transfer", "exact", 60, (0.5, 0.033, -0.58, -0.35), "info"),
        result("addition", "exact", 80, (0.375, 0.255, -0.2, -0.04, -0.1), "fail")
        if failed
        else result("addition", "exact", 80, (0.375, 0.35, -0.112, 0.06, -0.1), "unsure"),
        result("english", "nats_per_token", 40, (-3.312, -3.334, -0.031, -0.013, -0.1), "pass"),
        result("python", "nats_per_token", 40, (-1.98, -2.06, -0.12, -0.05, -0.1), "unsure"),
        result("rhyming", "exact", 40, (0.02, 0.0, -0.07, 0.0, -0.1), "floor"),
    )


def make_validation(*, accepted: bool = True) -> Validation:
    chosen = (0.575, 0.26, 0.12, 0.075, 0.03, 0.008)
    rng = np.random.default_rng(1)
    return Validation(
        results=make_results(failed=not accepted),
        curve=tuple(
            CurvePoint(
                k=k,
                chosen=value,
                chosen_ci=(max(0.0, value - 0.08), min(1.0, value + 0.08)),
                random=tuple(
                    float(0.57 - 0.02 * k + e) for e in rng.normal(0, 0.03, 8 if k else 0)
                ),
            )
            for k, value in enumerate(chosen)
        ),
        curve_task="recall",
        samples=(
            Sample(
                task="recall",
                prompt="The capital of France is",
                answer=" Paris",
                base=" Paris. It is the largest city in France.",
                edited=" the city of Lyon. It is the largest city in the world.",
            ),
            Sample(
                task="copying",
                prompt="dog, sun, tree ->",
                answer=" dog, sun, tree",
                base=" dog, sun, tree",
                edited=" dog, sun, tree",
            ),
        ),
        format_loss=make_form_loss(),
        masked_vs_baked=0.0,
        items={},
        accepted=accepted,
        reasons=(
            ("python: the interval reaches past its limit",)
            if accepted
            else ("addition lost 12.0 points, 10.0 were allowed",)
        ),
    )


def make_form_loss(kind: FormKind = "capability") -> FormLoss:
    form, right = (0.3, 2.9) if kind == "capability" else (2.9, 0.3)
    share = form / (form + right)
    return FormLoss(
        form=form,
        form_low=form - 0.2,
        form_high=form + 0.2,
        right=right,
        right_low=right - 0.25,
        right_high=right + 0.25,
        after=0.12,
        share=share,
        share_low=share - 0.04,
        share_high=share + 0.04,
        kind=kind,
    )


def make_format_check(sentence: str = "Of the 3.20 nats 9 % is lost form.") -> FormatCheck:
    whole = make_form_loss()
    effects = tuple(FormEffect(head=head, **whole.model_dump()) for head in CHOSEN)
    other = FormEffect(head=Head(3, 1), **make_form_loss("format").model_dump())
    return FormatCheck(
        task="recall",
        heads=CHOSEN,
        whole=whole,
        steps=effects,
        effects=(*effects, other),
        sentence=sentence,
    )


def make_confirmation() -> Confirmation:
    """The checks of the first three chosen heads: a pair of each kind but one."""
    first = CHOSEN[:3]
    alone = dict(zip(first, (1.14, 0.61, 0.02), strict=True))
    pairs = (
        (first[0], first[1], -0.42, "redundant"),
        (first[0], first[2], 0.9, "needs_both"),
        (first[1], first[2], 0.01, "none"),
    )
    return Confirmation(
        task="recall",
        heads=CHOSEN,
        n_items=24,
        evaluations=38,
        alone=tuple(
            HeadEffect(head=head, effect=cost, low=cost - 0.1, high=cost + 0.1, n_masks=1)
            for head, cost in alone.items()
        ),
        interactions=tuple(
            Interaction(
                heads=(one, other),
                alone=(alone[one], alone[other]),
                together=alone[one] + alone[other] + more,
                interaction=measured(more, 0.2),
                n_items=24,
                kind=kind,
            )
            for one, other, more, kind in pairs
        ),
        mean_ablated=MeanAblated(
            base_exact=1.0,
            exact_lost_zero=measured(0.96, 0.04),
            exact_lost_mean=measured(0.88, 0.1),
            nats_lost_zero=measured(4.4, 0.5),
            nats_lost_mean=measured(3.9, 0.6),
            share=measured(0.89, 0.08),
            verdict="not_artefact",
        ),
        random_sets=RandomSets(
            chosen=4.4,
            sets=tuple(
                RandomSet(
                    heads=tuple(Head(at.layer, (at.head + 1 + n) % 9) for at in CHOSEN),
                    loss=0.05 * n - 0.1,
                )
                for n in range(8)
            ),
            n_near=0,
            n_as_costly=0,
            p_value=1 / 9,
        ),
    )


def measured(value: float, around: float) -> Measured:
    return Measured(value=value, low=value - around, high=value + around)


def make_manifest(
    *, accepted: bool = True, validation: Validation | None = None, heads: tuple[Head, ...] = CHOSEN
) -> Manifest:
    """A run that removed recall; `validation` replaces the one that `accepted` chooses."""
    weights = WEIGHTS.model_copy(update={"sha256": "c3" * 32})
    return Manifest(
        schema_version=2,
        tool="capability-editor 0.1.0",
        model="smollm2-135m",
        base=BASE,
        revision=REVISION,
        base_files=(WEIGHTS,),
        heads=heads,
        edits=tuple(
            TensorEdit(
                tensor=f"model.layers.{at.layer}.self_attn.o_proj.weight",
                file="model.safetensors",
                axis=1,
                start=at.head * HEAD_DIM,
                stop=(at.head + 1) * HEAD_DIM,
                width=9 * HEAD_DIM,
            )
            for at in heads
        ),
        written=tuple(map(make_written, heads)),
        files=(weights, FileDigest(name="config.json", n_bytes=861, sha256="0f" * 32)),
        bytes_changed=368_011,
        bytes_total=269_060_552,
        restore=RestorePatch(n_bytes=370_112, sha256="7e" * 32),
        settings=Settings(
            capability="recall",
            controls=("copying", "addition", "english", "python"),
            max_heads=5,
            max_control_drop={"copying": 0.1, "addition": 0.1, "english": 0.1, "python": 0.1},
            min_target_drop=0.3,
            method="adaptive",
            seed=0,
            search_items=40,
            choose_items=30,
            test_items=120,
            dtype="float32",
        ),
        evaluations=112,
        scan_evaluations=270,
        universal=UNIVERSAL,
        confidence=make_confidence(),
        plan=make_plan(heads),
        confirmation=make_confirmation(),
        validation=validation or make_validation(accepted=accepted),
        format_check=make_format_check(),
        times={"search_s": 31.4, "validate_s": 88.2, "finished": "2026-01-05T10:00:00Z"},
    )


def make_step(head: Head, gain: float, alone: float, error: float = 0.06) -> Added:
    """A step whose gain differs from the head's alone with this error to each side."""
    return Added(head=head, gain=gain, alone=alone, beyond=measured(gain - alone, error))


def make_plan(heads: tuple[Head, ...] = CHOSEN) -> EditPlan:
    """The choice of `heads`, of which the second stands in for the first."""
    gains = ((0.6, 0.6), (0.3, 0.1), (0.2, 0.2), (0.1, 0.3), (0.1, 0.1))
    return EditPlan(
        capability="recall",
        heads=heads,
        steps=tuple(
            make_step(head, gain, alone) for head, (gain, alone) in zip(heads, gains, strict=False)
        ),
        predicted=(
            Predicted(task="recall", metric="exact", base=0.6, edited=0.02),
            Predicted(task="english", metric="nats_per_token", base=-3.3, edited=-3.32),
        ),
        evaluations=112,
        why="largest drop of recall with every control inside its limit",
    )


def make_confidence() -> Confidence:
    """Three of the chosen heads are decided, two others open, one in the way."""
    return Confidence(
        level=0.95,
        decided=CHOSEN[:3],
        helped=(Head(7, 7),),
        undecided=(Head(4, 4), Head(5, 5)),
        groups=((Head(4, 4), Head(4, 5)),),
        chance_z=3.1,
        evaluations=62,
        rounds=6,
        stopped="the budget of 90 evaluations is spent",
        sentence="3 heads decided at 95 % (...), 2 more undecided after 62 masks in 6 rounds",
    )


def make_fitted() -> Estimate:
    """The target's estimate with probabilities, and what another estimator says."""
    (found,) = make_estimates()
    decided = set(CHOSEN[:3])
    effects = [
        at.model_copy(
            update={
                "probability": 0.99 if at.head in decided else 0.01,
                "decided": at.head in decided,
            }
        )
        for at in found.effects
    ]
    rival = Rival(solver="lasso", heads=(CHOSEN[0], Head(0, 0)))
    return found.model_copy(update={"effects": tuple(effects), "rivals": (rival,)})


def make_written(head: Head) -> Written:
    """The bytes that zeroing one head reaches."""
    width = 9 * HEAD_DIM * 2
    columns = ((head.head * HEAD_DIM * 2, (head.head + 1) * HEAD_DIM * 2),)
    return Written(
        tensor=f"model.layers.{head.layer}.self_attn.o_proj.weight",
        file=WEIGHTS.name,
        rows=(Rows(start=head.layer * 7_000_000, row_bytes=width, n_rows=576, columns=columns),),
        sha256_before="1b" * 32,
        sha256_after="2a" * 32,
    )


def make_bake() -> Manifest:
    """A bake of given heads, which measured nothing."""
    return make_manifest().model_copy(
        update={
            "settings": None,
            "evaluations": None,
            "scan_evaluations": None,
            "universal": (),
            "confidence": None,
            "plan": None,
            "confirmation": None,
            "validation": None,
            "format_check": None,
            "times": {},
        }
    )
