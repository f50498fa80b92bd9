"""Chat templates run in a process of their own: whatever one does there ends with the process.

The process loads the tokenizer, has transformers render the conversations in its sandbox, and says
the texts.  It has a limit on time and memory, which a sandbox of expressions has not: a loop in a
loop, or a text repeated often enough, would hold or kill the editor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from editor import chat
from editor.errors import ModelError
from editor.records import Turn
from editor.wording import one_line

RENDER_S, RENDER_S_EACH = 120.0, 0.02
"""Longest time for all conversations, and what each of them adds to it."""
MEMORY_BYTES = 2 << 30
"""What rendering may take beyond what is taken when the tokenizer is loaded."""
MOST_ADDED = 200_000
"""Characters that a template may add to a conversation."""
MARK = "answer-goes-here"

_PROGRAM = "from editor.rendering import serve; serve()"
_HINT = "use the model's plain prompts with --chat never, or repair its chat template"


class Talks(NamedTuple):
    """`chat.Render` for one model."""

    folder: Path
    name: str
    trust_remote_code: bool = False

    def __call__(self, conversations: Sequence[tuple[Turn, ...]]) -> chat.Rendered:
        """Have the model's template write conversations, in another process.

        Raises:
            ModelError: the template fails, takes too long or too much, or the tokenizer cannot be
                loaded.
        """
        order = {
            "folder": str(self.folder.absolute()),
            "trust": self.trust_remote_code,
            "conversations": [[turn.model_dump() for turn in one] for one in conversations],
        }
        limit = RENDER_S + RENDER_S_EACH * len(conversations)
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM],
                input=json.dumps(order).encode(),
                capture_output=True,
                timeout=limit,
                check=False,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
        except subprocess.TimeoutExpired as error:
            raise self._failed(f"took more than {limit:.0f} s", _HINT) from error
        try:
            said: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            last = one_line(lines[-1])[:200] if lines else "no word"
            raise self._failed(f"ended its process ({done.returncode}): {last}", _HINT) from error
        if "error" in said:
            raise self._failed(one_line(str(said["error"]))[:300], said.get("hint") or _HINT)
        return chat.Rendered(said["template"], tuple(said["prompts"]), said["gap"])

    def _failed(self, how: str, hint: str) -> ModelError:
        return ModelError(f"the chat template of {self.name} cannot be used: {how}", hint)


def serve() -> None:
    """Read an order from standard input, write what came of it to standard output."""
    order = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no part of the answer
    try:
        tokenizer = chat.load_tokenizer(Path(order["folder"]), trust_remote_code=order["trust"])
        _limit_memory()
        said = rendered(tokenizer, order["conversations"])._asdict()
    except ModelError as error:
        said = {"error": error.message, "hint": error.hint}
    except MemoryError:
        said = {"error": f"it takes more than {MEMORY_BYTES >> 30} GiB"}
    except RecursionError:
        said = {"error": "it calls itself without an end"}
    except Exception as error:  # whatever a template, or a tokenizer of the model's own, raises
        first = next(iter(str(error).strip().splitlines()), "")
        said = {"error": f"{type(error).__name__}: {first}"}
    with out:
        json.dump(said, out)


def rendered(tokenizer: Any, conversations: Sequence[Sequence[dict[str, str]]]) -> chat.Rendered:
    """What a tokenizer's chat template makes of conversations, thinking switched off if it can be.

    Raises:
        ModelError: a text is far longer than its messages, or says nothing of them.
        Exception: whatever the template raises.
    """
    template = chat.own_template(tokenizer)
    if template is None:
        return chat.Rendered(None)
    switch = {chat.SWITCH: False} if chat.switches(template) else {}

    def write(turns: Sequence[dict[str, str]], *, asks: bool) -> str:
        text = tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=asks, **switch
        )
        return cast("str", text)

    prompts = [write(turns, asks=True) for turns in conversations]
    for turns, text in zip(conversations, prompts, strict=True):
        _check_text(text, turns)
    return chat.Rendered(template, tuple(prompts), _gap(write, conversations[0], prompts[0]))


def _check_text(text: str, turns: Sequence[dict[str, str]]) -> None:
    size = sum(len(turn["content"]) for turn in turns)
    if len(text) > size + MOST_ADDED:
        raise ModelError(
            f"it makes {len(text):,} characters of messages of {size:,}", "check where it is from"
        )
    # Templates trim, and few change anything else.
    if turns[-1]["content"].strip()[:40] not in text:
        raise ModelError("the last message is not in what it writes", _HINT)


def _gap(write: Any, turns: Sequence[dict[str, str]], prompt: str) -> str:
    """The space between a prompt and an answer, as the template writes a conversation with both."""
    try:
        whole: str = write([*turns, {"role": "assistant", "content": MARK}], asks=False)
    except Exception:  # a template need not know answers
        return ""
    between, found, _ = whole.removeprefix(prompt).partition(MARK)
    fits = found and whole.startswith(prompt) and (not between or between.isspace())
    return between if fits else ""


def _limit_memory() -> None:
    """Limit the process's address space, where the system does that."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(
        resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )
