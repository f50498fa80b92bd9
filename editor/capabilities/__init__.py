"""The built-in capabilities, by name.

Importing this is cheap: the items of a capability are made when they are first asked for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from editor.capabilities.arithmetic import ARITHMETIC
from editor.capabilities.base import (
    AnswerLikelihood,
    Capability,
    Continuation,
    Generation,
    ItemScore,
    Library,
    Likelihood,
    Outcome,
    Outside,
    Request,
    Scorer,
    TextLikelihood,
    split_of,
)
from editor.capabilities.code import CODE, CODE_COMPLETIONS
from editor.capabilities.copying import COPYING
from editor.capabilities.coreference import COREFERENCE
from editor.capabilities.hazards import HAZARDS, in_domain
from editor.capabilities.inflection import INFLECTION
from editor.capabilities.questions import ARC_CHALLENGE, BOOLQ, HELLASWAG, MMLU
from editor.capabilities.recall import RECALL
from editor.capabilities.rhyming import RHYMING
from editor.capabilities.swearing import SWEARING, SWEARING_COMPLETIONS
from editor.capabilities.text import ENGLISH, PYTHON
from editor.capabilities.word_problems import MATH
from editor.errors import UsageError, nearest
from editor.recipe import is_file

__all__ = [
    "AnswerLikelihood",
    "Capability",
    "Continuation",
    "Generation",
    "ItemScore",
    "Library",
    "Likelihood",
    "Outcome",
    "Outside",
    "Request",
    "Scorer",
    "TextLikelihood",
    "default_controls",
    "get",
    "in_domain",
    "names",
    "split_of",
]

_BUILT_IN = {
    capability.name: capability
    for capability in (
        *(RECALL, ARITHMETIC, COPYING, INFLECTION, COREFERENCE),
        *(SWEARING, SWEARING_COMPLETIONS, RHYMING, MATH, CODE, CODE_COMPLETIONS, *HAZARDS),
        *(HELLASWAG, BOOLQ, ARC_CHALLENGE, MMLU),
        *(ENGLISH, PYTHON),
    )
}


def names() -> tuple[str, ...]:
    """The names of the built-in capabilities: tasks first, then texts."""
    return tuple(_BUILT_IN)


def default_controls() -> tuple[str, ...]:
    """Those that a recipe keeps unless it names its controls; the target is none of them."""
    return tuple(name for name in names() if get(name).default_control)


def get(name: str, library: Library | None = None, outside: Outside | None = None) -> Capability:
    """The built-in capability of that name, the one that a YAML file defines, or a task of lm-eval.

    Args:
        library: where data sets are, for a capability whose items come from one.
        outside: what tasks of lm-eval may be made of.

    Raises:
        UsageError: there is none, and the hint names the closest ones; or the file has faults.
    """
    if name.startswith("lm-eval:"):
        from editor.capabilities import lm_eval_task

        return lm_eval_task.load(name, outside or Outside())
    if is_file(name):
        from editor.capabilities import custom

        return custom.load(Path(name), taken=names())
    if in_domain([name], None)[0] not in _BUILT_IN:
        raise UsageError(f"there is no capability named {name!r}", nearest(name, _BUILT_IN))
    found = _BUILT_IN[name]
    return replace(found, library=library) if found.data else found
