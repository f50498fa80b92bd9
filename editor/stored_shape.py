"""The shape of a multiplied-out weight, which a packed tensor's own shape does not always tell.

Stored + headers + the small tensors beside it --logical_shape-> (outputs, inputs)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast

from editor.coded_tensor import DAMAGED, Read
from editor.errors import ModelError
from editor.records import ZeroCode
from editor.safetensors_header import TensorEntry, parse_json, shown

_MAX_STATE_BYTES = 1 << 16

Tensors = Mapping[str, tuple[str, TensorEntry]]
"""File and entry of each tensor, by its name."""


class Stored(NamedTuple):
    """The tensor that holds a projection's weight, and how."""

    tensor: str
    code: ZeroCode
    linear: bool = False
    """The matrix is (outputs, inputs) even where the model's module is a Conv1D, whose own weight
    is (inputs, outputs): the heads lie along axis 1."""


def logical_shape(stored: Stored, tensors: Tensors, read: Read, path: Path) -> tuple[int, int]:
    """The shape of a multiplied-out weight.

    Args:
        stored: What `storage` found.
        tensors: All tensors of the checkpoint.
        read: Gives a tensor beside the weight by its name: see `zero_codes.patches`.
        path: The folder, for messages.

    Returns:
        (outputs, inputs); for a plain weight its shape as it is, so (inputs, outputs) of a Conv1D.

    Raises:
        ModelError: A tensor is missing or has a shape that does not fit its code.
    """
    entry = tensors[stored.tensor][1]
    shape = _shape(stored, entry, tensors, read, path)
    if shape is None or len(shape) != 2 or not all(shape):
        raise ModelError(
            f"{path}: tensor {shown(stored.tensor, 200)} should be a matrix stored as "
            f"{stored.code}, found {entry.dtype} {list(entry.shape)}",
            DAMAGED,
        )
    return shape[0], shape[1]


def quant_state_shape(content: bytes, name: str, where: str) -> tuple[int, int]:
    """The shape of a weight, from the JSON that bitsandbytes keeps in a tensor beside it.

    Args:
        content: The tensor's bytes.
        name: The tensor's name, for messages.
        where: The file, for messages.

    Returns:
        (outputs, inputs)

    Raises:
        ModelError: It is no JSON object, implausibly large, or has no shape of two sizes.
    """
    what = f"tensor {shown(name, 200)}"
    if not 0 < len(content) <= _MAX_STATE_BYTES:
        raise ModelError(
            f"{where}: {what} should have 1 to {_MAX_STATE_BYTES} bytes, found {len(content)}",
            DAMAGED,
        )
    raw = parse_json(content, Path(where), what=what).get("shape")
    rows, columns = _sizes(raw)
    if not rows or not columns:
        raise ModelError(
            f"{where}: {what} should give a shape of two sizes, found {shown(raw)}", DAMAGED
        )
    return rows, columns


def _sizes(raw: object) -> tuple[int, int]:
    values = cast("list[object]", raw) if isinstance(raw, list) else []
    sizes = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    return (sizes[0], sizes[1]) if len(sizes) == len(values) == 2 else (0, 0)


def gptq_bits(stored: Stored, tensors: Tensors) -> int:
    """Bits of a number of GPTQ (2, 4 or 8) by the width of its zeros; 0 if that gives none."""
    qzeros = tensors.get(stored.tensor.removesuffix("qweight") + "qzeros")
    shape, weight = qzeros[1].shape if qzeros else (), tensors[stored.tensor][1].shape
    if len(shape) != 2 or len(weight) != 2 or not weight[1]:
        return 0
    bits, rest = divmod(shape[1] * 32, weight[1])
    return 0 if rest or bits not in (2, 4, 8) else bits


def _shape(
    stored: Stored, entry: TensorEntry, tensors: Tensors, read: Read, path: Path
) -> tuple[int, ...] | None:
    shape = entry.shape
    if stored.code == "zero" or len(shape) != 2:
        return shape
    if stored.code == "awq":
        return shape[1] * 8, shape[0]
    if stored.code in ("gptq", "gptq_v2"):
        bits = gptq_bits(stored, tensors)
        return (shape[1], shape[0] * 32 // bits) if bits else None
    if stored.tensor.endswith("weight_packed"):
        if stored.code == "fp4":
            return shape[0], shape[1] * 2
        name = stored.tensor.removesuffix("packed") + "shape"
        return _stated_shape(name, shape[0], tensors, read, path)
    name = f"{stored.tensor}.quant_state.bitsandbytes__{stored.code}"
    return quant_state_shape(_small(name, tensors, read, path), name, str(path))


def _stated_shape(
    name: str, n_out: int, tensors: Tensors, read: Read, path: Path
) -> tuple[int, ...] | None:
    """The two sizes of compressed-tensors' `weight_shape`, of which the first is known."""
    content = _small(name, tensors, read, path)
    entry = tensors[name][1]
    if entry.dtype not in ("I64", "I32") or entry.shape != (2,):
        return None
    size = len(content) // 2
    parts = (content[:size], content[size:])
    rows, columns = (int.from_bytes(part, "little", signed=True) for part in parts)
    return (rows, columns) if rows == n_out and columns > 0 else None


def _small(name: str, tensors: Tensors, read: Read, path: Path) -> bytes:
    """The bytes of a small tensor beside the weight; its size is checked before it is read."""
    found = tensors.get(name)
    if found is None or found[1].stop - found[1].start > _MAX_STATE_BYTES:
        state = "none" if found is None else f"{found[1].stop - found[1].start} bytes"
        raise ModelError(
            f"{path}: expected tensor {shown(name, 200)} of at most {_MAX_STATE_BYTES} bytes, "
            f"found {state}",
            DAMAGED,
        )
    return read(name)[1]
