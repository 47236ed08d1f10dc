"""Checks the section ``checkpoint``, alone and beside clouds and pools. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import PurePath

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import DEFAULT_STATE
from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.checkpoint_kinds import checked_policy, policy_of
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.method_kinds import table
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.sections.checkpoint import (
    CLOUD_PRICES,
    CONNECTIONS,
    PRICE_SOURCES,
    SCOPES,
    UNSAVABLE,
    CheckpointSettings,
)
from slurm_elastic.policies.checkpoint import checkpoint

SECTION = "checkpoint"
SHARED = ("criu", "dmtcp", "blcr")  # methods that keep their images in `checkpoint.directory`
_UNCATCHABLE = ("KILL", "STOP", "CONT")
_SAVED = re.compile(r"exit(:([01]?\d?\d|2[0-4]\d|25[0-5]))?|file:[^\s/][^\s]*|line:.+")


def is_signal(name: str) -> bool:
    """Whether this signal can ask a program to save itself."""
    return name not in _UNCATCHABLE and f"SIG{name}" in signal.Signals.__members__


def is_sign(text: str) -> bool:
    """Whether ``text`` says how the end of a save shows (``checkpoint.signal.saved``)."""
    return bool(_SAVED.fullmatch(text)) and ".." not in text.removeprefix("file:").split("/")


SIGNAL_FORM = "a signal that can be caught, such as USR1"
SIGN_FORM = "exit, exit:CODE (0 to 255), file:PATH (in the job's directory) or line:TEXT"


def _words(draft: Draft) -> None:
    choices = {"method": table().names(), "unsavable": UNSAVABLE, "tcp": CONNECTIONS}
    for key, choices_of_key in choices.items():
        for path, _ in _each(draft, key):
            draft.choice(path, choices_of_key)
    _methods_of_other_packages(draft)
    draft.choice((SECTION, "signal", "scope"), SCOPES)
    _price_source(draft)
    for key in ("signal", "stop_signal"):
        name = _text(draft, "signal", key)
        if name is not None and not is_signal(name):
            draft.problems.add((SECTION, "signal", key), shown(name), SIGNAL_FORM)
    saved = _text(draft, "signal", "saved")
    if saved is not None and not is_sign(saved):
        draft.problems.add((SECTION, "signal", "saved"), shown(saved), SIGN_FORM)


def _price_source(draft: Draft) -> None:
    path = (SECTION, "prices", "source")
    if draft.value(path, str) == "ec2":
        draft.problems.add(path, "'ec2'", f"{CLOUD_PRICES!r}, the new word for it")
        return
    draft.choice(path, PRICE_SOURCES)


def _methods_of_other_packages(draft: Draft) -> None:
    """Check that a method of another package can be used."""
    for path, method in _each(draft, "method") if draft.strict else ():
        if method in table().other_names:
            try:
                table().kind(method)
            except ConfigError as error:
                actual, expected = f"{shown(method)}, {error}", "a method that can be used"
                draft.problems.add(path, actual, expected)


def _paths(draft: Draft) -> None:
    places: tuple[tuple[str, ...], ...] = (
        ("directory",), ("notices", "directory"), ("prices", "file"), ("blcr", "key"),
        ("blcr", "known_hosts"), ("blcr", "bin_dir"), ("blcr", "scontrol"),
    )  # fmt: skip
    for place in places:
        draft.path((SECTION, *place))


def _policies(draft: Draft) -> None:
    forms: dict[str, tuple[Callable[[str], object], str]] = {
        "policy": (
            checked_policy if draft.strict else policy_of,
            "a policy such as first_of(on_notice, daly)",
        ),
        "at_time_limit": (checkpoint.parse_at_limit, "a rule such as on_request(times=5)"),
    }
    for key, (parse, expected) in forms.items():
        for path, text in _each(draft, key):
            try:
                parse(text)
            except ValueError as error:
                draft.problems.add(path, shown(text), f"{expected} ({error})")


def _directory(draft: Draft) -> None:
    settings = _settings(draft)
    if settings is None:
        return
    if settings.directory is not None:
        state = PurePath(draft.value(("state_dir",), str) or DEFAULT_STATE)
        if PurePath(settings.directory).is_relative_to(state):
            expected = f"a directory outside of state_dir ({state}), which is SlurmUser's alone"
            draft.problems.add((SECTION, "directory"), shown(settings.directory), expected)
        return
    for path, method in _each(draft, "method"):
        if method in SHARED:
            expected = f"checkpoint.directory, too: method {method} keeps its images there"
            draft.problems.add(path, shown(method), expected)


def _accounts(draft: Draft) -> None:
    """Check the clouds whose account we use for the queue and the price history."""
    settings = _settings(draft)
    if settings is None or not draft.all_whole:
        return
    with_queue = [c.name for c in draft.clouds.values() if c.has_queue]
    notices, prices = settings.notices, settings.prices
    if notices.queue_cloud is not None and notices.queue_cloud not in with_queue:
        expected = f"a cloud of provider aws: one of {', '.join(with_queue) or '(none)'}"
        draft.problems.add(
            (SECTION, "notices", "queue_cloud"), shown(notices.queue_cloud), expected
        )
    url = notices.queue_url
    if url is not None and not (url.startswith(("http://", "https://")) and is_readable_url(url)):
        expected = "the URL of an SQS queue"
        draft.problems.add((SECTION, "notices", "queue_url"), shown(url), expected)
    if url is not None and not with_queue:
        expected = "a cloud of provider aws, whose account is used"
        draft.problems.add((SECTION, "notices", "queue_url"), shown(url), expected)
    if prices.source == CLOUD_PRICES and not any(c.has_spot_prices for c in draft.clouds.values()):
        expected = "a cloud that reports its spot prices, such as one of provider aws"
        draft.problems.add((SECTION, "prices", "source"), shown(prices.source), expected)


def _prices(draft: Draft) -> None:
    settings = _settings(draft)
    if settings is None:
        return
    prices = settings.prices
    if prices.source == "file" and prices.file is None:
        draft.problems.add((SECTION, "prices", "source"), shown("file"), "prices.file, too")
    if prices.file is not None and prices.source != "file":
        expected = "no file: prices.source is not file"
        draft.problems.add((SECTION, "prices", "file"), shown(prices.file), expected)
    if prices.source != "none":
        return
    for path, text in _each(draft, "policy"):
        if _watches(text):
            expected = "a policy that looks at no prices: checkpoint.prices.source is none"
            draft.problems.add(path, shown(text), expected)


def _watches(text: str) -> bool:
    try:
        return checkpoint.watches_prices(policy_of(text))
    except ValueError:
        return False  # _policies reports it


def _each(draft: Draft, key: str) -> list[tuple[KeyPath, str]]:
    """The places of that key in the section and in pools' own sections, with its values."""
    places: list[KeyPath] = [(SECTION, key)]
    places += [("pools", i, SECTION, key) for i in draft.indices("pools")]
    return [(path, text) for path in places if (text := draft.value(path, str)) is not None]


def _text(draft: Draft, *keys: str) -> str | None:
    return draft.value((SECTION, *keys), str)


def _settings(draft: Draft) -> CheckpointSettings | None:
    return draft.section(SECTION, CheckpointSettings, CheckpointSettings())


CHECKPOINT_FITS: tuple[Callable[[Draft], None], ...] = (
    _words, _paths, _policies, _directory, _accounts, _prices,
)  # fmt: skip
