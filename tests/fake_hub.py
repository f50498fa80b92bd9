"""A Hub in a folder, in the place of the two calls that reach the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from editor import hub_rows
from editor.hub_rows import Listed


class FakeHub:
    """Data sets by repository and commit; `main` is the first commit that was added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commits: dict[tuple[str, str], str] = {}
        self._files: dict[tuple[str, str], dict[str, int]] = {}
        self.downloaded: list[str] = []

    def add(
        self,
        repo: str,
        commit: str,
        name: str,
        rows: list[dict[str, Any]],
        *,
        ref: str = "main",
        n_bytes: int = 1000,
    ) -> None:
        """Publish a file of rows."""
        path = self._folder / repo / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if rows:
            parquet.write_table(pa.Table.from_pylist(rows), path)
        self._commits.setdefault((repo, ref), commit)
        self._files.setdefault((repo, commit), {})[name] = n_bytes

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answer in the place of the real one."""
        monkeypatch.setattr(hub_rows, "_list", self._list)
        monkeypatch.setattr(hub_rows, "_download", self._download)

    def _list(self, repo: str, revision: str) -> Listed:
        if (repo, revision) not in self._commits:
            raise LookupError(revision)
        commit = self._commits[repo, revision]
        return Listed(commit, tuple(self._files[repo, commit].items()))

    def _download(self, repo: str, name: str, commit: str) -> Path:
        self.downloaded.append(name)
        return self._folder / repo / commit / name
