"""Safetensors written by hand: any type, and headers that no library would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Raw = dict[str, tuple[str, list[int], bytes]]
"""Dtype, shape and bytes of each tensor."""


def write_raw(path: Path, tensors: Raw, **metadata: str) -> None:
    """Write safetensors without the library, for types that numpy has not."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    write_parts(path, json.dumps(header).encode(), data)


def write_parts(path: Path, header: bytes, data: bytes, length: int | None = None) -> None:
    size = len(header) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + header + data)
