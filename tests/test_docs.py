"""What docs/ says is what the program does.  `python tests/test_docs.py` writes the schema anew."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from editor.cli import main
from editor.records import Manifest

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "docs" / "editor.schema.json"


def schema() -> str:
    """The JSON schema of editor.json."""
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
        "title": "editor.json",
    }
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def test_the_schema_of_the_manifest_is_up_to_date() -> None:
    assert SCHEMA.read_text("utf-8") == schema(), "run: python tests/test_docs.py"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda at: at.name
)
def test_links_and_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for verb, flags in re.findall(r"^ *(?:\$ )?editor ([a-z]+)( [^#\n]*)?", text, re.M):
        command = main.commands.get(verb)
        assert command is not None, f"{page.name} names the command {verb}"
        below = getattr(command, "commands", {})
        words = [word for word in flags.split()[:1] if word in below]
        known = CliRunner().invoke(main, [verb, *words, "--help"]).output
        for flag in re.findall(r"(?<= )--?[a-z][a-z-]*", flags):
            assert flag in known, f"{page.name}: editor {verb} has no {flag}"


if __name__ == "__main__":
    SCHEMA.write_text(schema(), "utf-8")
