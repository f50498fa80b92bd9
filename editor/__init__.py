"""Remove a capability from an open-weight language model, and prove it.

    import editor
    editor.remove(model="smollm2-135m", capability="recall", output="edited")

The functions are those of `editor.api`, which is loaded when one is first asked for.
"""

from __future__ import annotations

from importlib import import_module

# Loading `typing` takes a moment in which the program cannot answer Ctrl-C yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from editor.api import (
        bake,
        compare,
        diff,
        localize,
        remove,
        undo,
        validate,
        verify,
        verify_derivative,
    )

__all__ = [
    "__version__",
    "bake",
    "compare",
    "diff",
    "localize",
    "remove",
    "undo",
    "validate",
    "verify",
    "verify_derivative",
]
__version__ = "0.1.0"

_API = frozenset(__all__) - {"__version__"}


def __getattr__(name: str) -> object:
    if name in _API:
        return getattr(import_module("editor.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
