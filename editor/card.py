"""Records to a model card: front matter that the Hub accepts, plain words, then the base's card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from editor import confidence_text, confirm_text, manifest_text, several_text, wording
from editor.records import Manifest, Metric, Result

MAX_BASE_CARD_BYTES = 200_000
MAX_FRONT_MATTER_CHARS = 20_000
_FRONT_MATTER = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.S | re.M)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_FIELDS = ("license", "license_name", "license_link", "language", "library_name", "pipeline_tag")
_METRIC_TYPES: dict[Metric, str] = {
    "exact": "accuracy",
    "logprob": "answer_logprob",
    "nats_per_token": "loss_nats_per_token",
}


def render_card(manifest: Manifest, base_card: str | None = None) -> str:
    """The `README.md` of the edited model.

    Args:
        manifest: What was done and what it measured.
        base_card: The base model's `README.md`: a few fields of its front matter are copied, its
            text goes below a rule.  It is not trusted: what is malformed is left out.
    """
    import yaml
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("editor"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(md=lambda text: Markup(markdown_text(str(text))))  # pyright: ignore
    base_fields, body = split_card(base_card or "")
    front = yaml.safe_dump(
        front_matter(manifest, base_fields), sort_keys=False, allow_unicode=True, width=100
    )
    results = manifest.validation.results if manifest.validation else ()
    each = manifest.each()
    sharing = manifest.sharing
    return environment.get_template("card.md.j2").render(
        manifest=manifest,
        front=Markup(front),
        headline=manifest_text.headline(manifest),
        what=manifest_text.what_text(manifest),
        removal=manifest_text.removal_text(manifest),
        cost=manifest_text.cost_text(manifest) if manifest.validation else None,
        columns=wording.COLUMNS,
        rows=[_card_row(at) for at in wording.ordered(results)],
        sure=" ".join(_named(one, each) + said for one in each if (said := _sure(one))),
        scanned=confidence_text.scan_text(
            manifest.universal, manifest.scan_evaluations, manifest.over_limit, manifest.not_numbers
        ),
        checks=_checks(manifest),
        shared=several_text.shared_sentence(sharing) if sharing else None,
        taken=several_text.TAKEN,
        take_columns=several_text.take_columns(sharing) if sharing else (),
        take_rows=several_text.take_rows(sharing) if sharing else (),
        targets=manifest_text.targets(manifest),
        not_shown=manifest_text.not_shown(manifest),
        commands=manifest_text.commands(manifest),
        base_name=wording.one_line(manifest.base),
        body=Markup(body),
    )


def split_card(card: str) -> tuple[dict[str, Any], str]:
    """Front matter and text of a card; an empty dict where the front matter is unusable."""
    import yaml

    text = card.encode("utf-8", "replace")[:MAX_BASE_CARD_BYTES].decode("utf-8", "ignore")
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, wording.strip_control(text).strip()
    body = wording.strip_control(text[match.end() :]).strip()
    if len(match[1]) > MAX_FRONT_MATTER_CHARS:
        return {}, body
    try:
        fields: object = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        # An impossible date is a ValueError, a thousand brackets a RecursionError.
        return {}, body
    return (cast("dict[str, Any]", fields), body) if isinstance(fields, dict) else ({}, body)


def front_matter(manifest: Manifest, base_fields: dict[str, Any]) -> dict[str, Any]:
    """The card's metadata, in the order in which the Hub shows it."""
    fields = {name: kept for name in _FIELDS if (kept := _plain(base_fields.get(name)))}
    front: dict[str, Any] = {}
    base = manifest.base.split("@", 1)[0]
    if is_hub_id(base):
        front["base_model"] = base
        front["base_model_relation"] = "finetune"
    is_gguf = manifest.base_files[0].name.endswith(".gguf")
    front |= {"library_name": "gguf" if is_gguf else "transformers"} | fields
    improve = manifest_text.improves(manifest)
    front["tags"] = ["capability-editor", f"capability-{'gain' if improve else 'removal'}"]
    results = wording.ordered(manifest.validation.results) if manifest.validation else []
    if results:
        capability = "-".join(map(wording.one_line, manifest_text.targets(manifest)))
        how = "better-at" if improve else "without"
        name = f"{manifest_text.model_name(manifest)}-{how}-{capability}"
        front["model-index"] = [{"name": name, "results": _model_index(results)}]
    return front


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form of a repository on the Hub, `organization/name`."""
    if not _HUB_ID.fullmatch(name) or "--" in name or ".." in name:
        return False
    return not name.endswith((".", "-", ".git", ".gguf", ".safetensors"))


def markdown_text(text: str) -> str:
    """`text` on one line, without meaning to Markdown, to HTML or to a table."""
    text = wording.one_line(text)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return re.sub(r"([\\`*\[\]|]|(?<!\w)_|_(?!\w)|~~)", r"\\\1", text)


def _checks(manifest: Manifest) -> str:
    """The checks on the chosen heads, target by target."""
    improve, each = manifest_text.improves(manifest), manifest.each()
    said = [
        (one, " ".join(confirm_text.sentences(one.confirmation, improve=improve)))
        for one in each
        if one.confirmation
    ]
    return " ".join(_named(one, each) + text for one, text in said)


def _named(one: Manifest, each: Sequence[Manifest]) -> str:
    """Which target something is about, where there are several."""
    return f"{manifest_text.capability_name(one)}: " if len(each) > 1 else ""


def _sure(manifest: Manifest) -> str | None:
    """How sure the search was, in one sentence."""
    found, improve = manifest.confidence, manifest_text.improves(manifest)
    said = confidence_text.summary(found, manifest.confirmation, improve=improve)
    if found is None:
        return f"{said[:1].upper()}{said[1:]}." if said else None
    n_masks = f"{found.evaluations} masks, decided at {100 * found.level:.12g} %"
    return f"{said} ({n_masks})."


def _card_row(result: Result) -> list[str]:
    row = wording.row_of(result)
    return list(row._replace(task=f"{row.task} ({wording.METRIC_NAMES[result.metric]})"))


def _model_index(results: list[Result]) -> list[dict[str, Any]]:
    """One entry a task with all its metrics: the value after the edit, the interval in the name."""
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(wording.one_line(result.task), []).append(result)
    return [
        {
            "task": {"type": "text-generation", "name": f"{task} ({rows[0].role})"},
            "dataset": {"type": task, "name": f"{task}, test split", "split": "test"},
            "metrics": [_metric(row) for row in rows],
        }
        for task, rows in by_task.items()
    ]


def _metric(result: Result) -> dict[str, Any]:
    row = wording.row_of(result)
    name = wording.METRIC_NAMES[result.metric]
    change = f"change from the base {row.change}, 95% CI {row.ci}, n = {row.n}"
    return {
        "type": _METRIC_TYPES[result.metric],
        "value": round(result.edited, 6),
        "name": f"{name} ({change})",
    }


def _plain(value: object) -> str | list[str] | None:
    """A short string or a list of them: what a copied field may be, or None."""
    if isinstance(value, str):
        return wording.one_line(value)[:200] or None
    if isinstance(value, list):
        # YAML reads Norwegian's code as False; it is left out like anything that is no text.
        parts = [at for at in cast("list[object]", value)[:100] if isinstance(at, str)]
        return [text for at in parts if (text := wording.one_line(at)[:200])] or None
    return None
