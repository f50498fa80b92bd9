"""Checkpoints that are made once a session, where a test asks for one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from editor.model import MaskableModel
    from tiny import Wired

# tiny.py loads transformers, which the tests of most modules do without.
ARCHITECTURES = ("llama", "qwen3", "gpt2", "gpt_neox")


def pytest_configure() -> None:
    """Hear Ctrl-C even where the tests run in the background of a script, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder into which the packages with real data were unpacked, side by side."""
    folder = Path(os.environ.get("EDITOR_TEST_DATA", ".venv/data"))
    assert folder.is_dir(), f"{folder} is no folder: set EDITOR_TEST_DATA to where the data are"
    return folder


@pytest.fixture(scope="session", params=ARCHITECTURES)
def any_checkpoint(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Path:
    """A random model of each architecture in turn, float32."""
    from tiny import save_random

    return save_random(tmp_path_factory.mktemp("tiny") / request.param, request.param)


@pytest.fixture(scope="session")
def any_model(any_checkpoint: Path) -> MaskableModel:
    from tiny import open_tiny

    return open_tiny(any_checkpoint)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: Any) -> Path:
    """A random llama, float32."""
    from tiny import save_random

    return save_random(tmp_path_factory.mktemp("tiny") / "llama-tiny", "llama")


@pytest.fixture(scope="session")
def wired(tmp_path_factory: Any) -> Wired:
    """A llama whose heads were wired by hand."""
    from tiny import save_wired

    return save_wired(tmp_path_factory.mktemp("wired") / "wired")
