"""Policies as text: every number is checked, in one place, and a wrong one is one clear sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_elastic.policies.checkpoint import checkpoint
from slurm_elastic.policies.growth import capacity, release
from slurm_elastic.policies.policy_text import split, text_of

PARSE = {
    "checkpoint": checkpoint.parse,
    "growth": capacity.parse_growth,
    "release": release.parse_release,
}
KNOWN = {
    "checkpoint": ("hour", "threshold", "threshold_static", "daly", "on_notice"),
    "growth": ("bursts", "group_bursts", "steady_stream", "ratio", "semi_elastic"),
    "release": ("idle", "delayed"),
}
WRONG = [
    ("checkpoint", "hour(margin=abc)", "hour: margin is 'abc', expected seconds of 0 or more"),
    ("checkpoint", "hour(margin=-5)", "hour: margin is -5, expected seconds of 0 or more"),
    ("checkpoint", "hour(margin=1e999)", "hour: margin is inf, expected seconds of 0 or more"),
    ("checkpoint", "hour(True)", "hour: margin is True, expected seconds of 0 or more"),
    ("checkpoint", "daly(least=x)", "daly: least is 'x', expected seconds of 0 or more"),
    ("checkpoint", "daly(mtti=abc)", "daly: mtti is 'abc', expected seconds over 0"),
    ("checkpoint", "daly(order=3)", "daly: order is 3, expected 1 (Young) or 2 (Daly)"),
    ("checkpoint", "threshold(period=0)", "threshold: period is 0, expected seconds over 0"),
    ("checkpoint", "threshold_static(2)", "threshold_static: band is 2, expected a share between"),
    ("checkpoint", "first_of(hour(-1), daly)", "hour: margin is -1, expected seconds of 0 or more"),
    ("checkpoint", "first_of(daly, often)", "first_of: 'often' is no policy, expected some of"),
    ("checkpoint", "hour(**margin)", "cannot be read, expected NAME or NAME(KEY=VALUE, ...)"),
    ("growth", "bursts(waste=1.5)", "bursts: waste is 1.5, expected whole seconds over 0, or auto"),
    ("growth", "semi_elastic(wait_limit=abc)", "semi_elastic: wait_limit is 'abc', expected whole"),
    ("growth", "semi_elastic(size=x)", "semi_elastic: size is 'x', expected one of first, sum"),
    ("growth", "ratio(slots=0)", "ratio: slots is 0, expected jobs over 0"),
    ("growth", "group_bursts(-2)", "group_bursts: group is -2, expected machines over 0"),
    ("release", "idle(-3)", "idle: seconds is -3, expected whole seconds of 0 or more"),
    ("release", "delayed(before_end=0)", "delayed: before_end is 0, expected whole seconds over 0"),
]  # fmt: skip


DOCS = Path(__file__).parents[2] / "docs"
TOLD = [
    (family, name, f"{name}({values})")
    for page, family in (
        ("policies", "growth"),
        ("policies", "release"),
        ("checkpointing", "checkpoint"),
    )
    for name, values in re.findall(
        r"^\| `(\w+)\(([^)]*\d[^)]*)\)` ", (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE
    )
    if name in KNOWN[family]
]
"""The tables of policies, which tell what each takes where nothing is said."""


def test_every_family_is_told_of() -> None:
    assert {name for _, name, _ in TOLD} >= {
        "bursts", "group_bursts", "steady_stream", "ratio", "semi_elastic", "idle", "delayed",
        "hour", "threshold", "threshold_static",
    }  # fmt: skip


@pytest.mark.parametrize(("family", "name", "text"), TOLD)
def test_the_documented_values_are_those_that_are_taken(family: str, name: str, text: str) -> None:
    assert PARSE[family](text) == PARSE[family](name)


@pytest.mark.parametrize(("family", "text", "said"), WRONG)
def test_a_wrong_number_is_one_clear_sentence(family: str, text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        PARSE[family](text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("checkpoint", "hour(margin=0)"),
        ("checkpoint", "daly(mtti=40, least=1.5)"),
        ("growth", "semi_elastic(wait_limit=0, size=sum)"),
        ("growth", "bursts(period=20)"),
        ("release", "delayed(on_premises=0, before_end=1)"),
    ],
)
def test_what_makes_sense_is_taken_and_written_as_it_was(family: str, text: str) -> None:
    assert text_of(PARSE[family](text)).replace(" ", "").split("(")[0] == text.split("(")[0]
    assert PARSE[family](text_of(PARSE[family](text))) == PARSE[family](text)


def test_a_policy_cannot_be_made_with_a_wrong_number_either() -> None:
    with pytest.raises(ValueError, match="seconds is -1"):
        release.Idle(-1)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "growth",
            "bursts(wast=3)",
            "there is no parameter 'wast', expected waste, period, per_machine; did you mean waste?",
        ),
        ("release", "idle(minutes=5)", "there is no parameter 'minutes', expected seconds"),
        (
            "growth",
            "bursts(1, 2, 3, 4)",
            "bursts: found 4 values, expected waste, period, per_machine",
        ),
    ],
)
def test_a_wrong_parameter_is_answered_with_those_there_are(
    kind: str, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        PARSE[kind](text)


@pytest.mark.parametrize(
    ("text", "separator", "parts"),
    [
        ("", ",", []),
        ("slurm", ",", ["slurm"]),
        ("bursts(waste=1, period=2), slurm", ",", ["bursts(waste=1, period=2)", "slurm"]),
        ("first_of(hour(1, 2), daly),x", ",", ["first_of(hour(1, 2), daly)", "x"]),
        (" a ,, b ", ",", ["a", "b"]),
        ("a(1+2)+b,c", "+", ["a(1+2)", "b,c"]),
    ],
)
def test_a_list_of_policies_is_split_outside_of_parentheses(
    text: str, separator: str, parts: list[str]
) -> None:
    assert split(text, separator) == parts


def test_a_number_may_be_a_milliard_and_no_larger() -> None:
    assert release.parse_release("idle(1000000000)") == release.Idle(10**9)
    with pytest.raises(ValueError, match="found a number over 1000000000"):
        release.parse_release("idle(1000000001)")
