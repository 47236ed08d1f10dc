"""The rich console of our commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment

from slurm_elastic.base.local_time import localised
from slurm_elastic.cli.streams import visible


class Output(Console):
    """Shows control characters instead of obeying them; lets BrokenPipeError pass to ``main``."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Make control characters in text visible; ``control`` marks rich's own control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again. Rich calls this method while it handles that error."""
        raise


def plain() -> Output:
    """A console without markup or emoji: hostlists have brackets, offers and reasons colons."""
    return Output(markup=False, emoji=False, highlight=False)


def say(text: str) -> None:
    """Print lines of sentences. On a terminal they wrap between words.

    In a pipe they stay whole, so that grep finds phrases. Lines indented by four spaces are
    commands to copy and never wrap.
    """
    for line in visible(localised(text, time.time())).splitlines():
        content = line.lstrip()
        if sys.stdout.isatty() and not line.startswith("    "):
            plain().print(Padding(content, (0, 0, 0, len(line) - len(content)), expand=False))
        else:
            print(line)
