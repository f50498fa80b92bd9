"""A new file that is written past the page cache, on a thread of its own.

Copying through the cache costs a core what the disk takes in time, and throws out what others had
there.  Where a file system does not take direct writes, they go through the cache as usual.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

_BUFFER_BYTES = 8 << 20
_ALIGNMENT = 4096
"""Direct writes begin and end at multiples of this, on disk and in memory."""


class DirectFile:
    """Writes bytes one after the other; a context manager that closes the file."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            OSError: It exists, or cannot be created.
        """
        # What is already there was not ours to write, and is never followed as a link.
        self._file = path.open("xb", buffering=0)
        self._set_direct(True)
        # Anonymous maps begin at a page's border, as direct writes ask.
        maps = (mmap.mmap(-1, _BUFFER_BYTES), mmap.mmap(-1, _BUFFER_BYTES))
        self._buffers = [np.frombuffer(one, np.uint8) for one in maps]
        self._filled = 0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        """Take bytes; they are on their way when the call returns.

        Raises:
            OSError: What was taken before could not be written.
        """
        while data.size:
            n = min(data.size, _BUFFER_BYTES - self._filled)
            self._buffers[0][self._filled : self._filled + n] = data[:n]
            self._filled += n
            data = data[n:]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write what is left.

        Raises:
            OSError: It could not be written.
        """
        rest = self._filled % _ALIGNMENT
        end = self._filled
        self._filled -= rest
        self._wait()
        self._put(self._buffers[0][: self._filled])
        self._set_direct(False)
        self._put(self._buffers[0][end - rest : end])

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._thread.shutdown()
            self._file.close()

    def _flush(self) -> None:
        self._wait()
        self._buffers.reverse()
        self._writing = self._thread.submit(self._put, self._buffers[1])
        self._filled = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _put(self, data: npt.NDArray[np.uint8]) -> None:
        view = data.data
        # A write may be short: on a disk that is about to be full, for one.
        while view:
            try:
                view = view[self._file.write(view) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._set_direct(False):
                    raise

    def _set_direct(self, wanted: bool) -> bool:
        """Turn direct writes on or off; whether that changed anything."""
        direct = getattr(os, "O_DIRECT", 0)
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        new = flags | direct if wanted else flags & ~direct
        if new == flags:
            return False
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, new)
        except OSError:  # this file system has none
            return False
        return True
