"""Finds a task of lm-eval by name and builds it, without running what strangers wrote.

A task is a YAML file that may name Python functions and hold Jinja templates.  Those of lm-eval's
own tasks run as lm-eval runs them.  A task from a folder of the user's is refused when it needs
Python, and its templates run in Jinja's sandbox, unless remote code is trusted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from editor.capabilities.base import Outside
from editor.errors import UsageError
from editor.strict_yaml import read_text
from editor.wording import one_line

PREFIX = "lm-eval:"
TRUST = "look the file over, then run it with --trust-remote-code"
OUTPUT_TYPES = ("multiple_choice", "loglikelihood", "generate_until")
_NO_DATA = ("pandas", "spark", "sql")
"""Builders of `datasets` that unpickle files or run what they name."""
_SHOWN_MEMBERS = 8


class Found(NamedTuple):
    """A task that can be asked."""

    task: Any
    """An `lm_eval.api.task.ConfigurableTask` with its data."""
    trusted: bool
    """Whether its templates may do what Python can."""


def find(name: str, outside: Outside) -> Found:
    """Look a task up, in the user's folder first, and build it.

    Args:
        name: as lm-eval lists it.

    Raises:
        UsageError: there is none, it needs code or a kind of answer that is not taken, or its data
            set is not to be had.
    """
    _quiet_lm_eval()
    if outside.include_path is not None:
        own = _own_entry(name, outside.include_path)
        if own is not None:
            if not outside.trust_remote_code:
                _refuse_code(name, own)
            return Found(
                _built(name, own, outside, trusted=outside.trust_remote_code),
                outside.trust_remote_code,
            )
    entry = _packaged_entry(name)
    return Found(_built(name, entry, outside, trusted=True), True)


@contextmanager
def rendering(trusted: bool) -> Iterator[None]:
    """Templates of tasks run in a sandbox here, unless they are trusted.

    Raises:
        UsageError: a template tried what the sandbox forbids.
    """
    if trusted:
        yield
        return
    from jinja2 import BaseLoader, StrictUndefined
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from lm_eval import utils

    usual: Any = utils.env
    safe = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
    )
    safe.filters.update(usual.filters)
    utils.env = safe
    try:
        yield
    except SecurityError as error:
        raise UsageError(f"a template of the task is unsafe: {error}", TRUST) from error
    finally:
        utils.env = usual


def _quiet_lm_eval() -> None:
    import datasets

    datasets.disable_progress_bars()
    for name in ("lm_eval", "datasets", "lm-eval"):
        logging.getLogger(name).setLevel(logging.ERROR)


# --- by name


def _own_entry(name: str, folder: Path) -> Any:
    """The entry of a task in the user's folder, or None.

    Raises:
        UsageError: there is no such folder, or the name is that of a group.
    """
    from lm_eval.tasks._index import TaskIndex

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder of tasks", "give a folder with --include-path")
    index = TaskIndex.build([folder])
    _check_kind(name, index)
    return index.get(name)


def _packaged_entry(name: str) -> Any:
    """The entry of a task that comes with lm-eval.

    Raises:
        UsageError: there is none, or it is a group.
    """
    import lm_eval.tasks as packaged
    from lm_eval.tasks._index import TaskIndex

    root = Path(packaged.__file__).parent
    # Reading all files as YAML takes a quarter of a minute; most names are found by their letters.
    wanted = re.compile(rb"^task:[ \t]*[\"']?" + re.escape(name.encode()) + rb"[\"']?[ \t]*$", re.M)
    for file in sorted(root.rglob("*.yaml")):
        if wanted.search(file.read_bytes().replace(b"\r", b"")):
            entry = TaskIndex.entry_from_path(file)
            if entry is not None and entry.name == name:
                return entry
    index = TaskIndex.build([root])
    entry = index.get(name)
    if entry is None:
        raise UsageError(
            f"lm-eval has no task named {name!r}",
            f"{_close(name, index)}  A task of your own needs --include-path DIR.",
        )
    _check_kind(name, index)
    return entry


def _close(name: str, index: Mapping[str, Any]) -> str:
    close = get_close_matches(name, index, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else "`lm-eval ls tasks` lists them."


def _check_kind(name: str, index: Mapping[str, Any]) -> None:
    """That a name is that of one task.

    Raises:
        UsageError: it is that of several.
    """
    members = list(_members(name, index, set()))
    if members == [name]:
        return
    shown = ", ".join(members[:_SHOWN_MEMBERS]) + (" ..." if len(members) > _SHOWN_MEMBERS else "")
    raise UsageError(
        f"{PREFIX}{name} is a group of {len(members)} tasks, not a task",
        f"name one of them: {one_line(shown)}",
    )


def _members(name: str, index: Mapping[str, Any], above: set[str]) -> Iterator[str]:
    """The tasks of a group, of the groups in it, and so on; a task is its own member."""
    from lm_eval.tasks._index import Kind

    entry = index.get(name)
    if entry is None or entry.kind not in (Kind.GROUP, Kind.TAG):
        yield name
        return
    listed = sorted(entry.tags) if entry.kind == Kind.TAG else (entry.cfg or {}).get("task")
    for one in cast("list[object]", listed) if isinstance(listed, list) else [listed]:
        if isinstance(one, str) and one not in above:
            yield from _members(one, index, above | {name})


# --- code of strangers


def _refuse_code(name: str, entry: Any) -> None:
    """That a task of the user's folder needs no code but lm-eval's own.

    Raises:
        UsageError: it does.
    """
    from lm_eval.api import metrics, registry
    from lm_eval.tasks._yaml_loader import load_yaml

    _ = metrics
    for file in _chain(Path(entry.yaml_path)):
        for node in _nodes(file):
            if node.tag.startswith("!"):
                at = f"{file}:{node.start_mark.line + 1}"
                raise UsageError(f"{at}: {name} runs Python code ({one_line(node.tag)})", TRUST)
    config = load_yaml(entry.yaml_path, resolve_func=False)
    for field in ("class", "custom_dataset", "use_prompt", "unsafe_code"):
        if config.get(field):
            raise UsageError(f"{entry.yaml_path}: {name} has {field}, which runs code", TRUST)
    for metric in config.get("metric_list") or ():
        wanted = cast("Mapping[str, Any]", metric).get("metric") if metric else None
        if str(wanted) not in registry.metric_registry or metric.get("hf_evaluate"):
            raise UsageError(
                f"{entry.yaml_path}: the metric {one_line(str(wanted))} is none of lm-eval's own; "
                "another one is code of the Hub's",
                TRUST,
            )
    data, options = str(config.get("dataset_path") or ""), config.get("dataset_kwargs") or {}
    if data in _NO_DATA or data.endswith(".py") or options.get("trust_remote_code"):
        raise UsageError(f"{entry.yaml_path}: reading the data {one_line(data)} runs code", TRUST)


def _chain(file: Path) -> Iterator[Path]:
    """A task's file and those that it includes."""
    seen: set[Path] = set()
    left = [file]
    while left:
        one = left.pop().resolve()
        if one in seen:
            continue
        seen.add(one)
        yield one
        root = _tree(one)
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", pairs):
            if key.value == "include":
                names = value.value if isinstance(value, yaml.SequenceNode) else [value]
                left += [one.parent / str(name.value) for name in names]


def _tree(file: Path) -> yaml.Node | None:
    text = read_text(file, "a task")
    try:
        return cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{file}: {str(error).splitlines()[0]}", "") from error


def _nodes(file: Path) -> Iterator[yaml.Node]:
    """All nodes of a file, each once."""
    root = _tree(file)
    left, seen = [] if root is None else [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            left += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


# --- building


def _built(name: str, entry: Any, outside: Outside, *, trusted: bool) -> Any:
    """The task with its data.

    Raises:
        UsageError: it is of a kind that is not taken, or cannot be built.
    """
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._factory import TaskFactory
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(entry.yaml_path, resolve_func=False)
    kind = config.get("output_type", "generate_until")
    if "class" in config:
        raise UsageError(
            f"{PREFIX}{name} is a task in Python, not in YAML", "choose a task that is a YAML file"
        )
    if kind not in OUTPUT_TYPES:
        raise UsageError(
            f"{PREFIX}{name} has the output type {one_line(str(kind))}, which is not taken",
            f"taken are {', '.join(OUTPUT_TYPES)}",
        )
    if config.get("unsafe_code"):
        raise UsageError(
            f"{PREFIX}{name} runs programs that the model wrote, which is not taken",
            "choose a task whose answers are compared",
        )
    try:
        with rendering(trusted), _network(not outside.offline):
            task = TaskFactory().build(entry, overrides=None, registry={})
    except UsageError:
        raise
    except Exception as error:  # whatever a file of a stranger or a data set leads to
        raise _not_built(name, config, error, outside) from error
    if not isinstance(task, ConfigurableTask):
        raise UsageError(f"{PREFIX}{name} is no task of a YAML file", "choose another task")
    return task


def _not_built(
    name: str, config: Mapping[str, Any], error: Exception, outside: Outside
) -> Exception:
    said = (str(error).strip().splitlines() or [""])[0][:300]
    data = "/".join(str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key))
    what = f"{PREFIX}{name}: {type(error).__name__}: {said}"
    if _about_data(error):
        away = "run once without --offline, or " if outside.offline else ""
        return UsageError(
            one_line(f"{what}; its data set {data} is not here"),
            f"{away}fetch it where there is a network: "
            f'python -c "import datasets; datasets.load_dataset({_arguments(config)})"',
        )
    return UsageError(one_line(f"{what}; the task cannot be built"), "see the task's YAML file")


def _arguments(config: Mapping[str, Any]) -> str:
    given = (config.get("dataset_path"), config.get("dataset_name"))
    return ", ".join(repr(one) for one in given if one)


def _about_data(error: BaseException) -> bool:
    """Whether an error or one of its causes is that data could not be had."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if isinstance(seen, OSError) or "DatasetNotFound" in name or "Offline" in name:
            return True
        if "HfHub" in name or "Connect" in name or "Couldn't find cache" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def _network(allowed: bool) -> Iterator[None]:
    """Data sets come from their cache only, unless the network is allowed."""
    if allowed:
        yield
        return
    import datasets.config as sets
    import huggingface_hub.constants as hub

    places: tuple[tuple[Any, str], ...] = (
        (sets, "HF_HUB_OFFLINE"),
        (sets, "HF_DATASETS_OFFLINE"),
        (hub, "HF_HUB_OFFLINE"),
    )
    before = [getattr(place, name, False) for place, name in places]
    for place, name in places:
        setattr(place, name, True)
    try:
        yield
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)
