"""What is written past the page cache is what would be written through it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from editor import direct_file
from editor.direct_file import DirectFile


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_file, "_BUFFER_BYTES", 8192)


def noise(n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(n).integers(0, 256, n, np.uint8)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 8191, 8192, 8193, 12_288, 50_001])
@pytest.mark.parametrize("piece", [1000, 8192, 60_000])
def test_every_byte_arrives(tmp_path: Path, size: int, piece: int) -> None:
    data = noise(size)
    with DirectFile(tmp_path / "out") as file:
        for at in range(0, size, piece):
            one = data[at : at + piece].copy()
            file.write(one)
            one[:] = 0  # the caller's memory is its own again
    assert (tmp_path / "out").read_bytes() == data.tobytes()


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"old")
    (tmp_path / "out").symlink_to("victim")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "out")
    assert (tmp_path / "victim").read_bytes() == b"old"


class Raw:
    """A file that behaves as disks may, around one that works."""

    def __init__(self, file: Any, *, short: int = 1 << 30, faults: list[int] | None = None) -> None:
        self.file, self.short, self.faults = file, short, faults or []

    def write(self, view: memoryview) -> int:
        if self.faults:
            number = self.faults.pop(0)
            raise OSError(number, os.strerror(number))
        return self.file.write(view[: self.short])

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()


def test_a_short_write_is_gone_on_with(tmp_path: Path) -> None:
    data = noise(20_000)
    with DirectFile(tmp_path / "out") as file:
        file._set_direct(False)
        file._file = Raw(file._file, short=777)  # type: ignore[assignment]
        file.write(data)
    assert (tmp_path / "out").read_bytes() == data.tobytes()


def test_a_disk_that_refuses_direct_writes_gets_others(tmp_path: Path) -> None:
    data = noise(20_000)
    with DirectFile(tmp_path / "out") as file:
        if not file._set_direct(False):
            pytest.skip("this file system has no direct writes")  # where nothing is to be refused
        file._set_direct(True)
        file._file = Raw(file._file, faults=[errno.EINVAL])  # type: ignore[assignment]
        file.write(data)
    assert (tmp_path / "out").read_bytes() == data.tobytes()


@pytest.mark.parametrize("size", [100, 8192, 30_000])
def test_a_fault_on_the_thread_is_the_callers(tmp_path: Path, size: int) -> None:
    with pytest.raises(OSError, match="No space left"), DirectFile(tmp_path / "out") as file:
        file._file = Raw(file._file, faults=[errno.ENOSPC])  # type: ignore[assignment]
        file.write(noise(size))


def test_a_fault_of_the_caller_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), DirectFile(tmp_path / "out") as file:
        file.write(noise(100))
        raise ZeroDivisionError
    assert file._file.closed
