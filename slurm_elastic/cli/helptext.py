"""The form of ``-h``: full phrases, options in groups, and examples that can be copied."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from slurm_elastic.cli.streams import NO_READER, flush_or_discard, visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


NAME = "slurm-elastic"
COMMAND_VARIABLE = "SLURM_ELASTIC_COMMAND"
"""Set by ./slurm-elastic of a clone for the program that it starts: its own path."""


def command_name() -> str:
    """Return the first word of commands that we print: the name, or the path of the called program
    if a shell would not find that program by its name.
    """
    if called := os.environ.get(COMMAND_VARIABLE):
        return shlex.quote(called)
    program = Path(sys.argv[0])
    if program.name != NAME or not program.exists():
        return NAME
    by_name = shutil.which(NAME)
    if by_name and Path(by_name).samefile(program):
        return NAME
    return shlex.quote(str(program.absolute()))


class HelpForm(argparse.HelpFormatter):
    """Fills paragraphs to the screen; a line that begins with a space stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        lines = [
            f"{indent}{line}" if line[:1] in ("", " ") else fill(line, width, indent)
            for line in text.split("\n")
        ]
        return "\n".join(lines)


class Command(argparse.ArgumentParser):
    """The parser class of our commands; argparse also makes their sub-commands with it."""

    def _get_formatter(self) -> argparse.HelpFormatter:
        return HelpForm(prog=self.prog)

    def error(self, message: str) -> NoReturn:
        """End with exit status 2. argparse repeats unknown words in the message as they are."""
        super().error(visible(message))

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print and flush at once, because a failing flush at the interpreter's exit would print a
        traceback.
        """
        to_stdout = file is not None and file is sys.stdout
        try:
            super()._print_message(message, file)
            if to_stdout:
                sys.stdout.flush()
        except OSError as error:
            if not to_stdout:
                return  # stderr is gone: only the exit code is left
            flush_or_discard()
            if isinstance(error, BrokenPipeError):
                sys.exit(NO_READER)
            sys.exit(f"{self.prog}: {error.strerror}")


def examples(*lines: str) -> str:
    """The end of a command's help: each line is a command that works as it stands."""
    return "\n".join(["example:" if len(lines) == 1 else "examples:", *(f"  {x}" for x in lines)])
