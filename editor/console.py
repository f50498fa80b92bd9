"""Where a command's words go, and what becomes of an error.

The result goes to stdout, everything else to stderr; with `--json` stdout gets one object and
nothing more.  Whatever comes from a model or a file is stripped of control characters here, so that
no caller can forget it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import click

from editor.errors import DiskError, EditorError, FileFaults
from editor.interrupts import listening

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_DISK = _FULL.union((errno.EFBIG, errno.EROFS, errno.EIO))
DONE, FAULT, NOT_ACCEPTED, INTERRUPTED = 0, 1, 4, 130
"""Exit codes; those of errors stand with the errors."""


class Console:
    """The two streams of a command and how much it says."""

    def __init__(self) -> None:
        self.as_json = False
        self.quiet = False
        self.verbosity = 0
        self.yes = False
        self.arguments: tuple[str, ...] = ()
        """What was typed after `editor`."""
        self._log: IO[str] | None = None

    @property
    def live(self) -> bool:
        """Whether a line may be redrawn: stderr is a terminal and nobody asked for quiet."""
        terminal = sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]
        return terminal and not self.quiet and os.environ.get("TERM") != "dumb"

    def open_log(self, path: Path) -> None:
        """Write what is said to a file too.

        Raises:
            OSError: it cannot be written.
        """
        self.close()
        self._log = path.open("a", encoding="utf-8", errors="backslashreplace")

    def log(self, text: str) -> None:
        """Write to the log file only, each line with the time."""
        if self._log is None:
            return
        lines = strip_control(text).splitlines()
        try:
            self._log.writelines(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n" for line in lines)
            self._log.flush()
        except OSError as error:
            # A log that cannot be written is no reason to lose the run.
            self.close()
            self.warn(f"the log file ends here: {error.strerror}")

    def close(self) -> None:
        """Close the log file."""
        log, self._log = self._log, None
        if log is not None:
            with suppress(OSError):  # what could not be written before cannot be now
                log.close()

    def note(self, text: str) -> None:
        """Say something on stderr, unless quiet."""
        self.log(text)
        if not self.quiet:
            _write(text, err=True)

    def warn(self, text: str) -> None:
        """Say something on stderr, even when quiet."""
        self.log(text)
        _write(text, err=True)

    def result(self, fields: Mapping[str, Any], text: str) -> None:
        """The outcome: the object with `--json`, the text without.

        Args:
            fields: what JSON can hold.
            text: the same for people.
        """
        self.log(text)
        if self.as_json:
            # ASCII, so that no terminal acts on what a model said; escapes keep it whole.
            _write(json.dumps(fields, indent=1), err=False, clean=False)
        else:
            _write(text, err=False)

    def progress(self) -> Any:
        """A `Progress` that fits the place; use it as a context manager."""
        from editor.meters import Bar, Lines

        return Bar(strip_control, self.log) if self.live else Lines(self.note)


class Program(click.Group):
    """The whole command: the one place where errors become words and exit codes."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run, and exit with the code of what happened.

        Raises:
            SystemExit: always.
        """
        given = list(sys.argv[1:] if args is None else args)
        _force_utf8()
        console = Console()
        console.arguments = tuple(given)
        extra["standalone_mode"] = False
        # The flag as it stands, for faults that come before flags have been read.
        console.as_json = "--json" in given
        try:
            with listening():
                code = super().main(given, *rest, obj=console, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except (click.Abort, KeyboardInterrupt):
            again = "run the same command again to go on"
            sys.exit(_report(console, "interrupted", again, INTERRUPTED))
        except click.ClickException as error:
            sys.exit(_report_usage(console, error))
        except EditorError as error:
            said = error.faults if isinstance(error, FileFaults) else error.message
            sys.exit(_report(console, said, error.hint, error.exit_code))
        except OSError as error:
            code = DiskError.exit_code if error.errno in _DISK else FAULT
            sys.exit(_report(console, *_os_words(error), code))
        # Only here: whatever nobody expected is a fault of the program, told in one line.
        except Exception as error:
            sys.exit(_report(console, *_fault_words(error), FAULT))
        finally:
            console.close()


def quiet_libraries(*, bars: bool = False) -> None:
    """Keep what other libraries say off stderr; to be called before they are loaded.

    Args:
        bars: let their progress bars be, for a download that may take an hour.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not bars:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def be_verbose(console: Console, level: int) -> None:
    """Send the log records of the editor's own modules to the console."""
    if level > 0:
        handler = _Handler(console)
        logger = logging.getLogger("editor")
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG if level > 1 else logging.INFO)


class _Handler(logging.Handler):
    """Log records as notes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.note(record.getMessage())


def strip_control(text: str) -> str:
    """`editor.wording.strip_control`, loaded when it is needed."""
    from editor.wording import strip_control as strip

    return strip(text)


def _write(text: str, *, err: bool, clean: bool = True) -> None:
    """Write and flush; a reader that went away is no fault of ours, nor is a deaf stderr."""
    try:
        click.echo(strip_control(text) if clean else text, err=err)
    except OSError as error:
        if not err and not isinstance(error, BrokenPipeError):
            raise
        # The interpreter flushes once more at its end, and would complain.
        stream = sys.stderr if err else sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _force_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def _report(console: Console, said: str | tuple[str, ...], hint: str, exit_code: int) -> int:
    """Say what went wrong, in one line or several, and what to do; returns the exit code."""
    # A path or a name may hold a newline: what follows it would pass for words of ours.
    message = "\n".join(map(_one_line, (said,) if isinstance(said, str) else said))
    hint = _one_line(hint)
    if exit_code == INTERRUPTED:
        console.warn(f"{message}; {hint}")
    else:
        console.warn(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))
    trace = traceback.format_exc().rstrip()
    console.log(trace)
    if console.verbosity > 1:
        _write(trace, err=True)
    if console.as_json:
        fields = {"message": message, "hint": hint, "exit_code": exit_code}
        # Where stdout itself is the fault, the line on stderr has to do.
        with suppress(OSError):
            _write(json.dumps({"error": fields}, indent=1), err=False, clean=False)
    return exit_code


def _one_line(text: str) -> str:
    return strip_control(text).replace("\n", "\\n").replace("\t", "\\t")


def _report_usage(console: Console, error: click.ClickException) -> int:
    """A fault that click has found in the flags."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see {context.command_path} --help" if context else ""
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        _write(message, err=True)
        return error.exit_code
    return _report(console, message, hint, error.exit_code)


def _os_words(error: OSError) -> tuple[str, str]:
    reason = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    if error.errno in _DISK:
        what = "the disk is full" if error.errno in _FULL else "the disk cannot be written"
        return (
            f"{where}{what}: {reason}",
            "free some space, raise the limit or choose another disk, then run the same command "
            "again: what was measured is kept",
        )
    return f"{where}{reason}", "run again with -vv for the traceback"


def _fault_words(error: Exception) -> tuple[str, str]:
    lines = str(error).strip().splitlines()
    first = f": {lines[0]}" if lines else ""
    return f"{type(error).__name__}{first}", "run again with -vv for the traceback"
