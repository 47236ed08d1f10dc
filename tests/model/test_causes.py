"""Causes are data: each is kept and read whole, and has a sentence of its own."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_elastic.model.causes import AnyCause, Cause, Quoted, decoded, encoded
from slurm_elastic.model.causes.deadline import Deadline
from slurm_elastic.model.causes.pool_failures import BootsFailed, MachinesFailed
from slurm_elastic.model.causes.run_starts import RunStart

GOLDEN = Path(__file__).parents[1] / "golden" / "causes.txt"
"""Each cause with its sentences. ``pytest tests/model/test_causes.py --update-screens`` writes it
anew: read each line that changed.
"""
KINDS: tuple[type[Cause], ...] = typing.get_args(AnyCause)
VALUES: dict[Any, Any] = {str: "aws-1", int: 3, float: 1.5, bool: True}
OTHERS: dict[Any, tuple[Any, ...]] = {str: ("",), int: (1, 0), float: (7322.0, 0.0), bool: (False,)}
"""Further values, for which a sentence may differ."""


def example(kind: type[Cause]) -> Cause:
    """One with a value for each field that needs one."""
    fields = msgspec.structs.fields(kind)
    return kind(**{f.name: value_of(f.type) for f in fields if f.required})


def value_of(wanted: Any) -> Any:
    """A value of that type."""
    if wanted in VALUES:
        return VALUES[wanted]
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        fields = msgspec.structs.fields(wanted)
        return wanted(**{f.name: value_of(f.type) for f in fields if f.required})
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return next(iter(wanted))
    if typing.get_origin(wanted) is tuple:
        return (value_of(typing.get_args(wanted)[0]),)
    of_union = typing.get_args(wanted)
    if type(None) in of_union and float in of_union:
        return 3.5
    return value_of(next(kind for kind in of_union if kind is not type(None)))


def others_of(wanted: Any) -> Iterator[Any]:
    """Further values of that type."""
    yield from OTHERS.get(wanted, ())
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        yield from wanted
    elif isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        yield wanted(**first_values(wanted))
    elif typing.get_origin(wanted) is tuple:
        one, *rest = typing.get_args(wanted)
        if rest == [...]:
            yield (value_of(one), "aws-2" if one is str else value_of(one))
            yield ()
    elif of_union := typing.get_args(wanted):
        for kind in of_union:
            yield from [None] if kind is type(None) else [value_of(kind), *others_of(kind)]


def first_values(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {f.name: value_of(f.type) for f in msgspec.structs.fields(kind)}


def variations(kind: type[Cause]) -> Iterator[Cause]:
    """The cause with its first values, and with each further value of each field, or with one
    optional field alone.
    """
    fields, first = msgspec.structs.fields(kind), first_values(kind)
    needed = {f.name: first[f.name] for f in fields if f.required}
    yield kind(**needed)
    yield kind(**first)
    for f in fields:
        yield kind(**needed | {f.name: first[f.name]})
        # A cause inside of a cause has sentences of its own.
        if Quoted not in typing.get_args(f.type):
            yield from (kind(**first | {f.name: value}) for value in others_of(f.type))


def subclasses(of: type[Cause]) -> set[type[Cause]]:
    found = set(of.__subclasses__())
    return found.union(*(subclasses(one) for one in found))


def test_the_ledger_can_read_every_cause() -> None:
    assert subclasses(Cause) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_a_cause_is_kept_whole_and_has_a_sentence(kind: type[Cause]) -> None:
    cause = example(kind)
    assert decoded(encoded(cause)) == cause
    assert str(cause.sentence) == str(cause) != ""
    assert not str(cause).endswith(".")


def test_no_two_causes_read_alike() -> None:
    sentences = [str(example(kind)) for kind in KINDS]
    repeated = {one for one in sentences if sentences.count(one) > 1}
    # What a cloud or Slurm said is quoted as it is.
    quoted = {"aws-1", "aws-1: aws-1"}
    assert repeated <= quoted


def test_a_text_that_is_no_cause_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded('{"kind":"of-tomorrow"}')


def test_a_text_in_place_of_another_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded('{"kind":"no-image","reason":"it does not run","runs":"yes"}')


def test_the_sentences_are_those_of_the_golden_file(pytestconfig: pytest.Config) -> None:
    blocks = []
    for kind in sorted(KINDS, key=lambda one: one.__name__):
        sentences = dict.fromkeys(f"  {cause}".rstrip() for cause in variations(kind))
        blocks.append("\n".join([kind.__name__, *sentences, ""]))
    text = "\n".join(blocks)
    if pytestconfig.getoption("update_screens"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("end", "now", "is_another_day"),
    [
        (20_000 * 86_400.0 - 1, 19_999 * 86_400.0, False),
        (20_000 * 86_400.0, 20_000 * 86_400.0 - 1, True),
        (20_000 * 86_400.0 - 0.5, 20_000 * 86_400.0 - 1, True),
    ],
)
def test_a_deadline_names_its_day_if_the_decision_is_of_another(
    end: float, now: float, is_another_day: bool
) -> None:
    assert Deadline.of(end, now) == Deadline(at=end, is_another_day=is_another_day)


def test_a_start_without_more_to_say_repeats_nothing() -> None:
    assert RunStart() == RunStart(number=None, repeats_s=0.0, doubt=None)


def test_machines_that_others_ended_are_not_called_unregistered() -> None:
    failure = BootsFailed(ended_by_others=True)
    assert str(MachinesFailed(nodes="pub3", count=1, failure=failure)) == (
        "the machine of pub3 was ended in the cloud by others, minutes after the start"
    )
