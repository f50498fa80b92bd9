"""The layers of the program, as data: who may import whom, and what may load at start-up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "editor"

# A module may import modules of lower layers.  All of editor/capabilities/ is one module here.
LAYERS: dict[int, tuple[str, ...]] = {
    0: ("errors", "records", "progress", "interrupts"),
    # What needs nothing but values: files as bytes, decisions as functions.
    1: (
        *(
            "patching",
            "direct_file",
            "parallel",
            "staging",
            "safetensors_header",
            "ggml_types",
            "store",
        ),
        *(
            "strict_yaml",
            "recipe",
            "design",
            "plan",
            "estimate",
            "posterior",
            "responses",
            "stats",
            "wording",
        ),
        "datasets",
        *("confirm_text", "confidence_text", "choice_text", "manifest_text", "several_text"),
        "written_faults",
        *("family", "unsupported", "coverage", "concentration"),
        *("sandbox", "jail"),
    ),
    # Formats: where the tensors lie in a file.
    2: (
        "confidence",
        "shared",
        "families",
        "layout",
        "coded_tensor",
        "ggml_layouts",
        "gguf_header",
        "card",
        "charts",
        "comparison",
        "row_files",
    ),
    # Where the heads lie in the tensors, and how zero is written there.
    3: (
        *(
            "architecture",
            "model_config",
            "projections",
            "gguf_spec",
            "quantization",
            "stored_shape",
        ),
        *("zero_codes", "packed_codes", "ggml_codes", "restore"),
        *("gguf", "keys", "digests", "report", "report_parts", "finished"),
        "packaged",
    ),
    4: ("weights", "source", "signing", "run_folders", "hub_rows"),
    # Whole checkpoints, as files and as models.
    5: (
        *("checkpoint", "differences", "model", "recorded", "hooks", "capabilities", "answer_form"),
        *("batching", "generation", "scored_rows", "prefix_tree", "trials"),
        *("library", "chat", "rendering"),
    ),
    6: (
        *("engine", "fanout", "processes", "cluster", "workers", "loading"),
        *("measure", "universal", "search", "adaptive", "methods", "choose", "formats"),
        *("confirm", "several", "validation", "tasks"),
    ),
    7: ("session", "baking", "verification", "pipeline", "preview", "costs"),
    8: (
        *("cli", "lookups", "proof", "flags", "recipe_check"),
        *("console", "display", "proof_text", "compare_text", "compare_page", "meters"),
        *("ahead_text", "capability_text", "fetching", "run_verbs", "runs_text"),
        *("api", "__init__", "__main__"),
    ),
}

# What a module may import beside the layers below it: the parts it was split into.  No cycles.
SAME_LAYER: dict[str, tuple[str, ...]] = {
    "records": ("errors",),
    "recipe": ("strict_yaml",),
    "responses": ("stats",),
    "sandbox": ("jail",),
    "confirm_text": ("wording",),
    "confidence_text": ("responses", "wording"),
    "choice_text": ("wording",),
    "manifest_text": ("wording",),
    "several_text": ("wording",),
    "report": ("report_parts",),
    "patching": ("direct_file",),
    "architecture": ("model_config", "projections", "quantization", "stored_shape"),
    "projections": ("model_config",),
    "gguf_spec": ("ggml_codes",),
    "quantization": ("stored_shape",),
    "zero_codes": ("packed_codes", "stored_shape"),
    "model": (
        *("answer_form", "batching", "capabilities", "chat", "generation", "hooks", "recorded"),
        *("scored_rows", "prefix_tree", "trials"),
    ),
    "chat": ("capabilities",),
    "rendering": ("chat",),
    "generation": ("hooks", "trials"),
    "trials": ("batching",),
    "prefix_tree": ("scored_rows", "trials"),
    "scored_rows": ("answer_form",),
    "fanout": ("engine",),
    "processes": ("engine", "fanout"),
    "cluster": ("engine", "fanout"),
    "workers": ("cluster", "fanout", "processes"),
    "measure": ("engine",),
    "universal": ("measure",),
    "search": ("measure", "universal"),
    "adaptive": ("measure", "search"),
    "methods": ("adaptive", "measure", "search"),
    "choose": ("measure", "search"),
    "confirm": ("measure",),
    "several": ("choose", "measure", "methods", "search"),
    "formats": ("measure",),
    "validation": ("formats", "measure"),
    "tasks": ("choose", "measure", "validation"),
    "api": ("compare_page",),
    "session": ("costs",),
    "baking": ("session",),
    "pipeline": ("baking", "costs", "session"),
    "verification": ("baking", "session"),
    "preview": ("costs", "session"),
    "console": ("meters",),
    "flags": ("console",),
    "lookups": (
        *("capability_text", "compare_page", "compare_text"),
        *("console", "fetching", "flags", "recipe_check"),
    ),
    "ahead_text": ("display",),
    "run_verbs": ("console", "flags", "runs_text"),
    "runs_text": ("display",),
    "capability_text": ("display",),
    "fetching": ("display",),
    "proof": ("api", "console", "flags", "proof_text"),
    "proof_text": ("display",),
    "compare_text": ("display",),
    "compare_page": ("compare_text",),
    "cli": ("ahead_text", "api", "console", "display", "flags", "lookups", "proof", "run_verbs"),
    "__init__": ("api",),
    "__main__": ("cli",),
}

HEAVY = frozenset(
    {"torch", "transformers", "peft", "sklearn", "lm_eval", "huggingface_hub", "pyarrow", "ray"}
)
HEAVY_ALLOWED = frozenset(
    {"answer_form", "batching", "generation", "hooks", "model", "prefix_tree"}
    | {"recorded", "scored_rows", "trials"}
)

LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """`plan` for editor/plan.py, `capabilities` for whatever is below editor/capabilities/."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each module of `editor` that the file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, _, rest = alias.name.partition(".")
                if first == "editor":
                    yield node.lineno, rest.partition(".")[0] or "__init__"
        elif isinstance(node, ast.ImportFrom):
            for name in from_names(node, path):
                yield node.lineno, name


def from_names(node: ast.ImportFrom, path: Path) -> Iterator[str]:
    """The modules of `editor` that one `from ... import ...` reads."""
    dotted = node.module or ""
    if node.level:
        package = ("editor", *path.relative_to(PACKAGE).parent.parts)
        dotted = ".".join((*package[: len(package) - node.level + 1], *dotted.split("."))).rstrip(
            "."
        )
    first, _, rest = dotted.partition(".")
    if first != "editor":
        return
    if rest:
        yield rest.partition(".")[0]
        return
    for alias in node.names:
        # `from editor import wording` reads a module.  The version is set before anything else of
        # the package is read, so every layer may ask for it.
        if alias.name != "__version__":
            yield alias.name if alias.name in LAYER_OF else "__init__"


def module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import: whatever is in no function and not for type checkers."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from module_level(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from module_level(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from module_level(handler.body)


def test_finds_the_modules() -> None:
    assert {"errors", "records", "report"} <= {module_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_lower_layers(path: Path) -> None:
    module = module_of(path)
    assert module in LAYER_OF, f"{path.name} is in no layer: add {module!r} to LAYERS in this test"
    for line, other in imported_modules(path):
        assert other in LAYER_OF, f"{path}:{line}: {other!r} is in no layer: add it to LAYERS"
        allowed = (
            other == module
            or LAYER_OF[other] < LAYER_OF[module]
            or other in SAME_LAYER.get(module, ())
        )
        assert allowed, (
            f"{path}:{line}: {module} (layer {LAYER_OF[module]}) may not import "
            f"{other} (layer {LAYER_OF[other]})"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_load_late(path: Path) -> None:
    if module_of(path) in HEAVY_ALLOWED:
        return
    for node in module_level(ast.parse(path.read_text("utf-8")).body):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        heavy = HEAVY & {name.partition(".")[0] for name in names}
        assert not heavy, f"{path}:{node.lineno}: import {', '.join(heavy)} inside the function"


def test_exceptions_stay_in_their_layer_and_have_no_cycle() -> None:
    def reach(module: str, seen: tuple[str, ...] = ()) -> None:
        assert module not in seen, f"{' imports '.join((*seen, module))}"
        for other in SAME_LAYER.get(module, ()):
            assert LAYER_OF[other] == LAYER_OF[module]
            reach(other, (*seen, module))

    for module in SAME_LAYER:
        reach(module)


@pytest.mark.parametrize("arguments", [["--help"], ["remove", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import runpy, sys\n"
        "sys.argv = ['editor', *sys.argv[1:]]\n"
        "try:\n"
        "    runpy.run_module('editor', run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "print('\\nLOADED', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    text, _, loaded = done.stdout.rpartition("\nLOADED ")
    assert "Usage" in text
    slow = HEAVY | {"scipy", "pandas", "datasets"}
    assert not slow & set(loaded.split())
