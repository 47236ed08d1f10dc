"""The questions of ``init``: at most eight, each with a default and the reason for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.units import format_duration, format_size, parse_duration, parse_size
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.site import Facts

DAY = 86400.0
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Question(Struct, frozen=True, kw_only=True):
    """``default`` as it would be typed; ``accepts`` raises ValueError, with the expected form, for
    another answer.
    """

    key: str
    text: str
    default: str
    why: str
    accepts: Callable[[str], object]


class Answers(Struct, frozen=True, kw_only=True):
    """The answers: ``memory`` in MiB, ``max_time`` in s (None: Slurm's own); ``head`` empty
    where machines get their configuration another way.
    """

    clouds: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    cap: float | None = None
    cpus: int = 1
    memory: int = 1024
    spot: bool = True
    max_time: float | None = None
    head: str = ""
    checkpoints: str = ""


def questions(site: Facts, found: Sequence[Found]) -> tuple[Question, ...]:
    """The ones that make sense here, in their order."""
    usable = [one for one in found if one.usable]
    public = any(one.location is Location.PUBLIC for one in usable)
    asked = [_clouds(usable)] if usable else []
    if public:
        asked += [_accounts(), _cap()]
    asked.append(_shape(site))
    if any(one.spot for one in usable):
        asked.append(_spot())
    asked += [_max_time(site), _head(site), _checkpoints()]
    return tuple(asked)


def answers(given: Mapping[str, str], asked: Sequence[Question]) -> Answers:
    """The answers of texts by key; what is missing has the default. ValueError: ``KEY: expected
    ...``.
    """
    values: dict[str, object] = {}
    for question in asked:
        try:
            value = question.accepts(given.get(question.key, question.default))
        except ValueError as error:
            raise ValueError(f"{question.key}: expected {error}") from None
        values |= value if isinstance(value, dict) else {question.key: value}
    return Answers(**values)  # type: ignore[arg-type]  # by each question's own key


def _clouds(usable: Sequence[Found]) -> Question:
    names = [one.name for one in usable]

    def accepts(text: str) -> tuple[str, ...]:
        chosen = _words(text)
        if not chosen or not set(chosen) <= set(names):
            raise ValueError(f"one or several of {', '.join(names)}")
        return chosen

    return Question(
        key="clouds", text="Which clouds shall jobs grow into?", default=" ".join(names),
        why="all that can be used", accepts=accepts,
    )  # fmt: skip


def _accounts() -> Question:
    def accepts(text: str) -> tuple[str, ...]:
        return () if text in ("", "none") else _words(text)

    return Question(
        key="accounts", text="Which accounts may spend money in public clouds?", default="none",
        why="public clouds stay shut until somebody is named", accepts=accepts,
    )  # fmt: skip


def _cap() -> Question:
    def accepts(text: str) -> float | None:
        if text in ("", "none"):
            return None
        value = _number(text, "dollars an hour above 0, or none")
        if value <= 0:
            raise ValueError("dollars an hour above 0, or none")
        return value

    return Question(
        key="cap", text="How many dollars an hour may run at most?", default="none",
        why="public clouds stay shut without a cap", accepts=accepts,
    )  # fmt: skip


def _shape(site: Facts) -> Question:
    form = "cpus x memory, such as 8x32G"

    def accepts(text: str) -> dict[str, object]:
        cpus, cross, memory = text.replace(" ", "").lower().partition("x")
        if not (cross and cpus.isdecimal() and 0 < int(cpus) <= 65533):
            raise ValueError(form)
        try:
            size = parse_size(memory.upper())
        except ValueError:
            raise ValueError(form) from None
        if size <= 256:
            raise ValueError(f"{form}, more than 256M")
        return {"cpus": int(cpus), "memory": int(size)}

    return Question(
        key="shape", text="How large is a node?", default=f"{site.cpus}x{_size(site.memory)}",
        why="as most of the site's own nodes", accepts=accepts,
    )  # fmt: skip


def _size(mebibytes: int) -> str:
    """In whole GiB upwards: what machines are sold in."""
    return str(format_size(-(-mebibytes // 1024) * 1024))


def _spot() -> Question:
    def accepts(text: str) -> bool:
        if text.lower() not in ("yes", "no", "y", "n"):
            raise ValueError("yes or no")
        return text.lower().startswith("y")

    return Question(
        key="spot", text="Buy spot machines before others?", default="yes",
        why="a third of the price; jobs that Slurm may not requeue never go there", accepts=accepts,
    )  # fmt: skip


def _max_time(site: Facts) -> Question:
    longest = min(site.max_time or DAY, DAY)

    def accepts(text: str) -> float:
        try:
            value = float(parse_duration(text))
        except ValueError:
            raise ValueError("a time such as 12h or 2d") from None
        if value < 60:
            raise ValueError("a minute at least")
        return value

    why = (
        "a machine that is paid for a day"
        if site.max_time is None or site.max_time > DAY
        else (f"as partition {site.partition}")
    )
    return Question(
        key="max_time", text="How long may a job run in the clouds?",
        default=str(format_duration(longest)), why=why, accepts=accepts,
    )  # fmt: skip


def _head(site: Facts) -> Question:
    def accepts(text: str) -> str:
        if text == "none":
            return ""
        if not _WORD.fullmatch(text):
            raise ValueError("a name or an address that machines reach, or none")
        return text

    why = "SlurmctldHost has it; none: their image knows the configuration"
    return Question(
        key="head", text="By which address do machines reach this head?",
        default=site.head or "none", why=why, accepts=accepts,
    )  # fmt: skip


def _checkpoints() -> Question:
    def accepts(text: str) -> str:
        if text == "none":
            return ""
        if not re.fullmatch(r"/[A-Za-z0-9_./-]+", text):
            raise ValueError("an absolute path that all nodes share, or none")
        return text

    return Question(
        key="checkpoints", text="Where do jobs' checkpoints go?", default="none",
        why="without one, jobs on machines that are taken away start anew", accepts=accepts,
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if not all(_WORD.fullmatch(word) for word in words):
        raise ValueError("names, with blanks between")
    return words


def _number(text: str, form: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(form) from None
