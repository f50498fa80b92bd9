"""What a manifest says of its edit in words: headline, what was done, what it cost, its limits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from editor.records import Manifest, Result
from editor.wording import (
    METRIC_NAMES,
    change_text,
    interval_text,
    last_part,
    listed,
    one_line,
    value_text,
)


def model_name(manifest: Manifest) -> str:
    """The last part of the base's name."""
    return last_part(manifest.base)


def improves(manifest: Manifest) -> bool:
    """Whether the capability was to get better, not to go."""
    return manifest.settings is not None and manifest.settings.improve


def capability_name(manifest: Manifest) -> str | None:
    """What was removed (or improved), or None when heads were given without a purpose."""
    names = targets(manifest)
    return listed(names) if names else None


def targets(manifest: Manifest) -> tuple[str, ...]:
    """All capabilities that were removed (or improved)."""
    if manifest.settings is not None:
        return manifest.settings.targets
    return () if manifest.plan is None else (manifest.plan.capability,)


def headline(manifest: Manifest) -> str:
    """What was done, as a title."""
    model, capability = model_name(manifest), capability_name(manifest)
    if capability is None:
        return f"{model} with {_heads(manifest)} zeroed, not measured"
    aim = "do better at" if improves(manifest) else "remove"
    if manifest.validation is None:
        return f"NOT VALIDATED: {model} with {_heads(manifest)} zeroed to {aim} {capability}"
    if not manifest.validation.accepted:
        return f"NOT VALIDATED: {model} edited to {aim} {capability}"
    judged = target_results(manifest)
    if improves(manifest):
        return f"{model} that {_better(judged)} at {capability}"
    lost = min((-at.change / at.base for at in judged if at.base), default=1.0)
    how = "removed" if lost >= 0.9 else f"reduced by {100 * lost:.0f} %"
    return f"{model} with {capability} {how}"


def removal_text(manifest: Manifest, n_heads: int | None = None) -> str:
    """What was removed and how well, in one or two sentences; `n_heads` is the model's number."""
    of_all = "" if n_heads is None else f" of the model's {n_heads:,}"
    done = f"{_heads(manifest)}{of_all} {_were(len(manifest.heads))} set to zero"
    judged = target_results(manifest)
    if not judged:
        return f"{done}. Nothing was measured: what this removed, and what it cost, is not known."
    said = [
        f"{_subject(at)} went from {value_text(at.base, at.metric)} to "
        f"{value_text(at.edited, at.metric)} on {at.n} questions that the search had "
        f"not seen ({_change_phrase(at)})."
        for at in judged
    ]
    return " ".join([f"{done}.", *said])


def cost_text(manifest: Manifest) -> str:
    """What the edit cost, in a few sentences: controls that broke their limit come first."""
    judged = control_results(manifest)
    if not judged:
        return "No other ability was measured against a limit, so what else it cost is not known."
    passed = sum(result.gate == "pass" for result in judged)
    text = f"Of {len(judged)} other measurements with a limit, {passed} stayed within it" + (
        " with their whole interval." if passed else "."
    )
    worst = [result for result in judged if result.gate != "pass"]
    for result in worst or judged[:4]:
        reading = {"fail": "outside its limit", "unsure": "not certain", "floor": "cannot be told"}
        note = reading.get(result.gate)
        text += f" {one_line(result.task)}: {_change_phrase(result)}{f', {note}' if note else ''}."
    return text


def target_results(manifest: Manifest) -> list[Result]:
    """The rows that the verdict rests on: the targets with a limit, or the first target."""
    results = () if manifest.validation is None else manifest.validation.results
    rows = [result for result in results if result.role == "target"]
    return [at for at in rows if at.limit is not None] or rows[:1]


def control_results(manifest: Manifest) -> list[Result]:
    """The controls that have a limit."""
    results = () if manifest.validation is None else manifest.validation.results
    return [at for at in results if at.role == "control" and at.limit is not None]


def what_text(manifest: Manifest) -> str:
    """What the edited model is, after the base's name."""
    tried = manifest.validation is not None and not manifest.validation.accepted
    if improves(manifest):
        capability = capability_name(manifest)
        what = f"heads zeroed without which it {_better(target_results(manifest))} at"
        if tried:
            what = "heads zeroed in an attempt to do better at"
        return f"with {what} {capability}."
    n = len(targets(manifest))
    out = "one ability" if n == 1 else f"{n} abilities"
    attempt = f"after an attempt to take {out} out of its weights."
    return attempt if tried else f"with {out} taken out of its weights."


def not_shown(manifest: Manifest) -> list[str]:
    """What the numbers must not be taken for, as sentences."""
    improve = improves(manifest)
    lost = "the gain survives fine-tuning" if improve else "fine-tuning brings the ability back"
    lines = [
        f"Zeroed heads can be trained again. Whether {lost} was not tested.",
        "Requantizing, merging and adapters change the weights again; what is said here holds for "
        "these files only.",
    ]
    if manifest.validation is None:
        return ["Nothing was measured, so nothing is known of what the edit does.", *lines]
    chat = manifest.chat
    if chat is not None and chat.used:
        lines.append(f"Questions that are messages were {one_line(chat.why)}.")
    other = "need not gain." if improve else "may still bring out what was removed."
    return [
        "It is a measurement on the tasks listed, not a guarantee: another wording, language or "
        f"task {other}",
        "An ability that is not in the table may have changed unnoticed.",
        "The intervals cover the choice of questions, not the choice of tasks or of the seed.",
        *lines,
    ]


def commands(manifest: Manifest) -> list[tuple[str, str]]:
    """What to type to check and to repeat the edit: pairs of a purpose and a command."""
    base = one_line(manifest.model)
    if manifest.model == manifest.base and "/" not in base:
        base = f"PATH/TO/{base}"  # a local folder, of which only the name is recorded
    if manifest.revision and "/" in base and "@" not in base:
        base += f"@{one_line(manifest.revision)}"
    base = shlex.quote(base)
    heads = ",".join(map(str, manifest.heads))
    return [
        ("Compare every byte with the base", f"editor verify . --base {base}"),
        (
            "Measure it again, against the base",
            f"editor validate . --base {base}"
            + ("" if manifest.settings else " --capability CAPABILITY"),
        ),
        (
            "Write the same files again",
            f"editor bake --model {base} --heads {heads} --output again",
        ),
    ]


def _better(judged: Sequence[Result]) -> str:
    """As sure as the measurement."""
    return "does better" if all(at.gate == "pass" for at in judged) else "may do better"


def _heads(manifest: Manifest) -> str:
    n = len(manifest.heads)
    return f"{n} attention head{'' if n == 1 else 's'}"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _subject(result: Result) -> str:
    task = one_line(result.task)
    if result.metric == "exact":
        return f"Right answers on {task}"
    return f"The log-probability of {task} ({METRIC_NAMES[result.metric].split(', ')[1]})"


def _change_phrase(result: Result) -> str:
    unit = {"exact": "points", "logprob": "nats", "nats_per_token": "nats a token"}[result.metric]
    change = change_text(result.change, result.metric)
    return f"{change} {unit}, 95% interval {interval_text(result.ci, result.metric)}"
