"""The cause of an error that an SDK wrapped."""

from __future__ import annotations

from slurm_elastic.providers.base.errors import causes


def of(error: BaseException, **chain: object) -> BaseException:
    """As ``raise`` chains it: ``cause`` by ``from``, ``context`` where another was handled."""
    for name, value in chain.items():
        setattr(error, f"__{name}__", value)
    return error


INNER = ConnectionRefusedError("no")


class ReasonedError(Exception):
    def __init__(self, reason: object) -> None:
        super().__init__("x")
        self.reason = reason


def test_what_an_error_came_of_is_told_before_it() -> None:
    alone = ValueError("x")
    assert list(causes(alone)) == [alone]
    for error in (
        of(ValueError("x"), cause=INNER),
        of(ValueError("x"), context=INNER, suppress_context=False),
        ValueError("x", INNER),
        ReasonedError(INNER),
    ):
        assert list(causes(error)) == [INNER, error]


def test_what_was_put_aside_on_purpose_is_no_cause() -> None:
    error = of(ValueError("x"), context=INNER, suppress_context=True)
    assert list(causes(error)) == [error]
    for reason in ("a text", None):
        reasoned = ReasonedError(reason)
        assert list(causes(reasoned)) == [reasoned]


def test_an_error_that_names_itself_is_told_once() -> None:
    error = ReasonedError(None)
    error.reason = error
    assert list(causes(error)) == [error]


def test_causes_of_causes_come_first() -> None:
    middle = of(KeyError("y"), cause=INNER)
    assert list(causes(ValueError("x", middle)))[:2] == [INNER, middle]
