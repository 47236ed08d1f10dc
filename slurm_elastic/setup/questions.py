"""The questions of ``init``: at most nine, each with a default and the reason for it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.units import format_duration, format_size, parse_duration, parse_size
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.site import Facts

DAY = 86400.0
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Question(Struct, frozen=True, kw_only=True):
    """``default`` as typed; ``accepts`` raises ValueError, with the expected form, or answers."""

    key: str
    text: str
    default: str
    why: str
    accepts: Callable[[str], object]


class Answers(Struct, frozen=True, kw_only=True):
    """The answers: ``memory`` in MiB, ``max_time`` in s (None: Slurm's); ``head`` may be "";
    ``hosts`` has URLs of BMCs by node.
    """

    clouds: tuple[str, ...] = ()
    hosts: dict[str, str] = {}
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    cap: float | None = None
    cpus: int = 1
    memory: int = 1024
    spot: bool = True
    max_time: float | None = None
    head: str = ""
    checkpoints: str = ""


class Earlier(Struct, frozen=True, kw_only=True):
    """What a configuration that is there answers, the ``names`` of its clouds and pools, whether a
    cloud of it is ``public``, and whether machines of one learn where the head is (``joins``).
    """

    answers: Answers
    names: frozenset[str]
    public: bool
    joins: bool


def questions(
    site: Facts, found: Sequence[Found], earlier: Earlier | None = None
) -> tuple[Question, ...]:
    """The ones that make sense here, in their order. What is of a cloud alone is asked for new
    ones.
    """
    there = earlier.names if earlier else frozenset()
    usable = [one for one in found if one.usable and one.name not in there]
    asked = [_clouds(usable)] if usable else []
    if any(one.by_node for one in usable):
        asked.append(_hosts(site))
    if any(one.location is Location.PUBLIC for one in usable) or (earlier and earlier.public):
        asked += [_accounts() if site.accounts_checked else _groups(site), _cap()]
    if usable or earlier is None:
        asked.append(_shape(site))
    if any(one.spot for one in usable):
        asked.append(_spot())
    asked.append(_max_time(site))
    if any(one.joins for one in usable) or (earlier and earlier.joins):
        asked.append(_head(site))
    asked.append(_checkpoints())
    return tuple(_as_there(one, earlier) for one in asked) if earlier else tuple(asked)


def _as_there(question: Question, earlier: Earlier) -> Question:
    """With the default that the configuration has; of the head only where that was a choice."""
    there = earlier.answers
    texts = {
        "accounts": " ".join(there.accounts), "groups": " ".join(there.groups),
        "cap": "" if there.cap is None else f"{there.cap:g}",
        "max_time": "" if there.max_time is None else str(format_duration(there.max_time)),
        "head": there.head, "checkpoints": there.checkpoints,
    }  # fmt: skip
    if question.key not in texts or (question.key == "head" and not (there.head or earlier.joins)):
        return question
    return replace(question, default=texts[question.key] or "none", why=_AS_THERE)


def answers(
    given: Mapping[str, str], asked: Sequence[Question], earlier: Earlier | None = None
) -> Answers:
    """The answers of texts by key, else the defaults. ValueError: ``KEY: expected ...``."""
    values: dict[str, object] = {}
    for question in asked:
        text = given.get(question.key, question.default)
        if earlier and text == question.default and question.why == _AS_THERE:
            continue  # in whatever form it is there
        try:
            value = question.accepts(text)
        except ValueError as error:
            raise ValueError(f"{question.key}: expected {error}") from None
        values |= value if isinstance(value, dict) else {question.key: value}
    return replace(earlier.answers if earlier else Answers(), **values)


_AS_THERE = "as the configuration has"


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


def _hosts(site: Facts) -> Question:
    def accepts(text: str) -> dict[str, object]:
        pairs = [] if text == "none" else [word.partition("=") for word in text.split()]
        for name, _, url in pairs:
            if not (_NODE.fullmatch(name) and _URL.fullmatch(url)):
                raise ValueError("NODE=URL of each host, with blanks between, or none")
            if name in site.taken:
                raise ValueError(f"names that slurm.conf does not have, but {name} is there")
        return {"hosts": {name: url for name, _, url in pairs}}

    return Question(
        key="hosts", text="Which hosts are switched on by which BMC?", default="none",
        why="such as r1=https://r1-bmc/redfish/v1/Systems/1 r2=...", accepts=accepts,
    )  # fmt: skip


_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_URL = re.compile(r"https?://[^/\s]+/\S+")


def _some_or_none(text: str) -> tuple[str, ...]:
    return () if text in ("", "none") else _words(text)


def _groups(site: Facts) -> Question:
    return Question(
        key="groups", text="Which Unix groups may spend money in public clouds?", default="none",
        why=f"{site.accounting}: an account is whatever anybody types, a group is not; public "
        "clouds stay shut until somebody is named", accepts=_some_or_none,
    )  # fmt: skip


def _accounts() -> Question:
    return Question(
        key="accounts", text="Which accounts may spend money in public clouds?", default="none",
        why="public clouds stay shut until somebody is named", accepts=_some_or_none,
    )  # fmt: skip


def _cap() -> Question:
    def accepts(text: str) -> float | None:
        if text in ("", "none"):
            return None
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < math.inf:
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

    def accepts(text: str) -> float | None:
        if text == "none":
            return None
        try:
            value = float(parse_duration(text))
        except ValueError:
            raise ValueError("a time such as 12h or 2d, or none") from None
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
        why = "" if text == "none" else _no_head(text)
        if why:
            raise ValueError(f"the head's name or address as machines know it, or none; {why}")
        return "" if text == "none" else text

    why = "SlurmctldHost has it; none: their image knows the configuration"
    return Question(
        key="head", text="By which address do machines reach this head?",
        default="none" if _no_head(site.head) else site.head, why=why, accepts=accepts,
    )  # fmt: skip


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def _no_head(text: str) -> str:
    """Why it can be no address of a head; empty where it can. It may have a port behind it."""
    host, colon, port = text.partition(":")
    if colon and not (port.isdecimal() and 0 < int(port) < 65536):
        return f"{text} has no port from 1 to 65535 after its ':'"
    if host.lower() in ("yes", "no", "y", "n"):
        return f"{host} is an answer to another question"
    if not host or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        return f"{text!r} is neither a name nor an address"
    if host.lower() == "localhost":
        return f"to a machine {host} is itself"
    if not host.rpartition(".")[2].isdecimal():
        return ""
    try:
        address = ip_address(host)
    except ValueError:
        return f"{host} is no address: it has four numbers, each at most 255"
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return f"no machine reaches {host}"
    return ""


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
