"""How a model is loaded by whoever is to measure with it: here, in a worker, on another machine."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from editor.digests import identity
from editor.errors import ModelError
from editor.records import ModelSpec
from editor.source import default_cache, resolve

if TYPE_CHECKING:
    from editor.model import MaskableModel


@dataclass(frozen=True)
class Loading:
    """All that a process needs to load a model; `fanout.Make`."""

    name: str
    """What the user called it, for machines on which the folder is not there."""
    folder: Path
    spec: ModelSpec
    dtype: str
    device: str
    trust_remote_code: bool = False
    threads: int | None = None
    """Threads of a process that shares the machine; None leaves it to torch."""
    spread: bool = False
    """Whether worker i takes the i-th GPU, where `device` does not say which."""
    identity: str | None = None
    """`digests.identity` that the files must have, where they may be others."""
    cache: Path | None = None

    def __call__(self, slot: int) -> MaskableModel:
        """Load it.

        Raises:
            ModelError: the files are not there, are others, or cannot be loaded.
            UsageError: the device is not there.
        """
        from editor.model import load  # torch and transformers: seconds

        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        folder = self.folder if self.identity is None else self._found(self.identity)
        return load(
            folder,
            self.spec,
            dtype=self.dtype,
            device=self._device(slot),
            trust_remote_code=self.trust_remote_code,
        )

    def _device(self, slot: int) -> str:
        if not self.spread or self.device != "cuda":
            return self.device
        import torch

        return f"cuda:{slot % max(1, torch.cuda.device_count())}"

    def _found(self, wanted: str) -> Path:
        """The folder on this machine, where another one asks for the model."""
        cache = self.cache or default_cache()
        folder = self.folder
        if not folder.exists():
            try:
                folder = resolve(self.name, cache_dir=self.cache).folder
            except Exception as error:
                raise ModelError(
                    f"{socket.gethostname()} has no {folder} and cannot find {self.name}: {error}",
                    "put the model where every machine reads it, or name it by its Hub id",
                ) from error
        names = [file.name for file in self.spec.files]
        if identity(folder, names, cache) != wanted:
            raise ModelError(
                f"{socket.gethostname()}:{folder} is another model than here",
                "copy the same files to every machine",
            )
        return folder


def threads_of(workers: int) -> int | None:
    """Threads for each of the processes that share this machine; None where the user said."""
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // workers)
