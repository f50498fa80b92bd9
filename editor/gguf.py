"""A GGUF file -> a folder of bfloat16 safetensors that loads like any other checkpoint.

The quantized weights are multiplied out, so the numbers are those of the 4-bit (or other) model,
not those of the model it was made from.  The result is checked before it gets its name: reloaded,
it must give the same logits, bit for bit, and the same token ids as the GGUF.
"""

# pyright: standard
# transformers has no complete types.
from __future__ import annotations

import io
import json
import logging
import os
import shutil
import uuid
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from editor.errors import ModelError
from editor.gguf_header import read_gguf_header

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_log = logging.getLogger(__name__)

CONVERTER = 1
"""Version of the conversion, part of a cached result's name: raise it when the output changes."""

# Spaces, digits, a special token and a script that is cut into bytes: where tokenizers differ.
_PROBES = ("The capital of France is", "  12 + 345 =\n", "<|im_start|>user\nnaïve 日本", "")


def convert(gguf: Path, target: Path) -> None:
    """Write `target`, a complete checkpoint, or leave nothing.

    `target` appears by one rename at the end.  When another process was faster, its result stays.

    Args:
        gguf: The GGUF file.
        target: Folder to create; its parents are created too.

    Raises:
        ModelError: The file is damaged, of an unsupported architecture, or does not survive the
            conversion unchanged; or the packages that read GGUF are not installed.
    """
    check_file(gguf)
    _log.info("converting %s to safetensors, once", gguf.name)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        # Bars that the libraries draw would end up in logs; what matters is raised.
        with redirect_stderr(io.StringIO()):
            _write(gguf, partial)
        for file in partial.iterdir():
            _sync(file)
        _publish(partial, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(
            f"the conversion of {gguf.name} could not be written to {target.parent}: {reason}",
            "free some space, or name another folder in EDITOR_CACHE",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_file(gguf: Path) -> None:
    """Refuse what is not a whole GGUF file, without loading its weights.

    Raises:
        ModelError: The file is no GGUF, its header is damaged, or its end is missing.
    """
    _require("gguf", "accelerate")
    read_gguf_header(gguf)


def load(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model at bfloat16 and the tokenizer, straight from the file.

    Raises:
        ModelError: transformers does not support the file, or it lacks weights.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **place)
        # Some releases keep the packed blocks unless told otherwise; older ones have no such class.
        if config := getattr(transformers, "GgufConfig", None):
            place["quantization_config"] = config(dequantize=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, dtype=torch.bfloat16, output_loading_info=True, **place
        )
        model, info = loaded
    # What the libraries raise for a file that they do not expect is of no known kind.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"transformers {transformers.__version__} cannot load {gguf}: {reason}",
            "use the safetensors release of this model",
        ) from error
    if missing := sorted(info["missing_keys"]):
        # They would be filled with random numbers.
        raise ModelError(
            f"{gguf} has no values for {', '.join(missing[:5])} ({len(missing)} in all)"
        )
    return model.eval(), tokenizer


def _write(gguf: Path, folder: Path) -> None:
    model, tokenizer = load(gguf)
    logits = [_logits(model, ids) for ids in _probe_ids(tokenizer) if ids]
    _save_model(model, folder)
    _save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    del model  # two copies need not be in memory at once
    _check_same(gguf, folder, logits=logits, ids=_probe_ids(tokenizer))


def _save_model(model: PreTrainedModel, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        # A tied output embedding is the input embedding's memory under a second name.
        if tensor.data_ptr() not in seen:
            tensors[name] = tensor.contiguous()
        seen.add(tensor.data_ptr())
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    config = model.config
    # How the file packed the weights, and its title, are not true of the folder.
    for stale in ("quantization_config", "_model_name_or_path"):
        vars(config).pop(stale, None)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, context: int) -> None:
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8"))
    # Traces of how it was loaded, and a class name that older releases and other tools do not know.
    for key in ("is_local", "local_files_only", "name_or_path"):
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["model_max_length"] = context
    file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _check_same(
    gguf: Path, folder: Path, *, logits: list[torch.Tensor], ids: list[list[int]]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if _probe_ids(tokenizer) != ids:
        raise ModelError(f"the tokenizer of {gguf} gives other token ids once it is saved")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, local_files_only=True
    ).eval()
    again = [_logits(model, probe) for probe in ids if probe]
    if not all(torch.equal(a, b) for a, b in zip(logits, again, strict=True)):
        raise ModelError(f"the model of {gguf} gives other logits once it is saved")


def _probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return [list(tokenizer(text)["input_ids"]) for text in _PROBES]


def _logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits after each token, (n_tokens, vocabulary)."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def _require(*packages: str) -> None:
    missing = [name for name in (*packages, "torch", "transformers") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"reading a GGUF file needs {', '.join(missing)}, not installed",
            'install the extra: pip install "capability-editor[demo]"',
        )


def _sync(file: Path) -> None:
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def _publish(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
