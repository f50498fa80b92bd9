"""Folders of runs that have found their heads, with effects made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from editor.comparison import Finished
from editor.records import (
    EditPlan,
    Estimate,
    Fingerprint,
    Head,
    HeadEffect,
    Localization,
    Settings,
    UniversalHeads,
)

N_LAYERS, N_HEADS = 10, 10
ALL = tuple(Head(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS))
Effects = Mapping[str, tuple[float, float]]
"""By head: the effect, and half the width of its interval."""


def make_effects(effects: Effects) -> tuple[HeadEffect, ...]:
    found = [
        HeadEffect(head=Head.parse(name), effect=x, low=x - half, high=x + half, n_masks=1)
        for name, (x, half) in effects.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.effect, one.head)))


def make_estimate(effects: Effects, task: str = "recall", score: Any = "logprob") -> Estimate:
    return Estimate(
        task=task,
        score=score,
        solver="each head alone",
        n_masks=len(effects),
        fit_r2=None,
        effects=make_effects(effects),
    )


def make_run(
    effects: Effects,
    *,
    capability: str = "recall",
    model: str = "org/small",
    score: str = "logprob",
    chosen: tuple[str, ...] = (),
    universal: tuple[str, ...] = (),
    over_limit: tuple[str, ...] = (),
    n_layers: int = N_LAYERS,
    **settings: Any,
) -> Finished:
    """A run on a model of `n_layers` layers of 10 heads; a model is known by its name."""
    heads = tuple(map(Head.parse, chosen))
    scan = make_estimate(
        {f"L{layer}H{head}": (0.0, 0.1) for layer in range(n_layers) for head in range(N_HEADS)},
        "english",
        "nats_per_token",
    )
    fields = {
        "capability": capability,
        "controls": ("english",),
        "max_heads": 5,
        "max_control_drop": {"english": 0.05},
        "min_target_drop": 0.5,
        "method": "adaptive",
        "seed": 0,
        "search_items": 24,
        "choose_items": 40,
        "test_items": 160,
        "dtype": "bfloat16",
    }
    return Finished(
        "",
        Fingerprint(
            version="0.1.0",
            model=model,
            checkpoint=f"sha256 of {model}",
            settings=Settings.model_validate(fields | settings),
        ),
        Localization(
            run="",
            heads=heads,
            evaluations=100,
            scan_evaluations=100,
            universal=UniversalHeads(
                checkpoint="",
                threshold=0.1,
                evaluations=len(scan.effects),
                effects=(scan,),
                heads=tuple(map(Head.parse, universal)),
                elapsed_s=1.0,
            ),
            over_limit=tuple(map(Head.parse, over_limit)),
            estimates=(make_estimate(effects, capability, score),),
            plan=EditPlan(capability=capability, heads=heads, predicted=(), evaluations=1, why=""),
        ),
    )


def write_run(folder: Path, run: Finished) -> Path:
    """What `localize` leaves of a run."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(run.fingerprint.model_dump_json())
    (folder / "journal.jsonl").write_text("")
    (folder / "estimate.json").write_text(run.found.model_dump_json())
    return folder
