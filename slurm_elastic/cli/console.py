"""The rich console of our commands."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

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
