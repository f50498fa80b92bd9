"""The program `editor`, also as `python -m editor`.

It loads as little as can be before it can answer Ctrl-C, which Python itself would answer with a
traceback.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _quit)
    from editor.cli import main as command

    command()


def _quit(*_: object) -> None:
    """Before and after a command there is nothing to keep."""
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
