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
        """All that is printed comes through here; rich's own control codes are marked."""
        for one in super().render(renderable, options):
            yield one if one.control else one._replace(text=visible(one.text))

    def on_broken_pipe(self) -> None:
        """Called while that error is handled."""
        raise


def plain() -> Output:
    """Text as it is: hostlists have brackets, offers and reasons have colons."""
    return Output(markup=False, emoji=False, highlight=False)


def say(text: str) -> None:
    """Sentences in lines: at a terminal they break between words; elsewhere they are whole,
    for who looks for words in them. So are those that are indented by four: they are to be copied.
    """
    for line in visible(localised(text, time.time())).splitlines():
        words = line.lstrip()
        if sys.stdout.isatty() and not line.startswith("    "):
            plain().print(Padding(words, (0, 0, 0, len(line) - len(words)), expand=False))
        else:
            print(line)
