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
import os
import shutil
import struct
import uuid
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from editor.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONVERTER = 1
"""Version of the conversion, part of a cached result's name: raise it when the output changes."""

# Spaces, digits, a special token and a script that is cut into bytes: where tokenizers differ.
_PROBES = ("The capital of France is", "  12 + 345 =\n", "<|im_start|>user\nnaïve 日本", "")

# Types of metadata values, by the number that the file uses: size in bytes where it is fixed.
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"


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
    try:
        size = gguf.stat().st_size
        with gguf.open("rb") as stream:
            needed = _Header(stream, size).data_end()
    except OSError as error:
        raise ModelError(f"{gguf} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, struct.error) as error:
        raise ModelError(
            f"{gguf} is damaged or no GGUF file: {error}", "fetch the file again"
        ) from error
    if needed > size:
        raise ModelError(
            f"{gguf} is cut off: its tensors need {needed:,} bytes, the file has {size:,}",
            "fetch the file again",
        )


class _Header:
    """Walks the header of a GGUF file; every length is held against the file's size first."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream = stream
        self.size = size

    def data_end(self) -> int:
        """Offset just after the last tensor's data."""
        if (magic := self.stream.read(4)) != b"GGUF":
            raise ValueError(f"it starts with {magic!r}, expected b'GGUF'")
        if (version := self.number("<I")) not in (2, 3):
            raise ValueError(f"version {version}, expected 2 or 3")
        n_tensors, n_values = self.number("<Q"), self.number("<Q")
        alignment = 32
        for _ in range(n_values):
            key, kind = self.string(), self.number("<I")
            if key == _ALIGNMENT.encode() and kind == 4:
                alignment = self.number("<I")
            else:
                self.skip_value(kind)
        ends = [self.tensor_end() for _ in range(n_tensors)]
        if not ends or alignment == 0:
            raise ValueError("it holds no tensors" if alignment else "its alignment is 0")
        return -(-self.stream.tell() // alignment) * alignment + max(ends)

    def tensor_end(self) -> int:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, n_elements = self.string(), 1
        for _ in range(self.number("<I")):
            n_elements *= self.number("<Q")
        kind, offset = self.number("<I"), self.number("<Q")
        # A number that names no type is a ValueError of the enumeration.
        block, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if n_elements % block:
            raise ValueError(f"tensor {name!r} is not whole blocks of {block}")
        return offset + n_elements // block * n_bytes

    def skip_value(self, kind: int) -> None:
        if kind in _FIXED:
            self.skip(_FIXED[kind])
        elif kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            inner, length = self.number("<I"), self.number("<Q")
            if inner in _FIXED:
                self.skip(_FIXED[inner] * length)
            elif inner == _STRING:
                for _ in range(length):
                    self.string()
            else:
                raise ValueError(f"an array of values of type {inner}")
        else:
            raise ValueError(f"a metadata value of type {kind}")

    def number(self, form: str) -> int:
        return struct.unpack(form, self.stream.read(struct.calcsize(form)))[0]

    def string(self) -> bytes:
        length = self.number("<Q")
        if length > self.size:
            raise ValueError(f"a text of {length:,} bytes")
        return self.stream.read(length)

    def skip(self, n_bytes: int) -> None:
        if self.stream.tell() + n_bytes > self.size:
            raise ValueError("its header is cut off")
        self.stream.seek(n_bytes, os.SEEK_CUR)


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
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
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
