"""The rich console of our commands."""

from __future__ import annotations

from rich.console import Console


class Output(Console):
    """One that lets BrokenPipeError pass, as ``print`` does: ``main`` knows what that means."""

    def on_broken_pipe(self) -> None:
        """Called while that error is handled."""
        raise  # noqa: PLE0704


def plain() -> Output:
    """Text as it is: hostlists have brackets, offers and reasons have colons."""
    return Output(markup=False, emoji=False, highlight=False)
