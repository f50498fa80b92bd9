"""`python -m editor`: for systems where `editor` is another program."""

from __future__ import annotations

from editor.cli import main

if __name__ == "__main__":
    main()
