"""The questions of ``init``: at most nine, each with a default and the reason for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import format_duration, parse_duration, parse_size
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.site import Facts
from slurm_elastic.setup.sizes import Size, fitting, missing, told

DAY = 86400.0
_AT_LINE = re.compile(r".*?:\d+: ")


class Question(Struct, frozen=True, kw_only=True):
    """``default`` as typed; ``accepts`` has the answers of a text, or raises ValueError with a
    sentence that says why it is none.
    """

    key: str
    text: str
    default: str
    why: str
    accepts: Callable[[str], dict[str, object]]


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

    @property
    def size(self) -> Size:
        """What a node has at least."""
        return self.cpus, self.memory


class Earlier(Struct, frozen=True, kw_only=True):
    """What a configuration that is there answers, the ``names`` of its clouds and pools, whether a
    cloud of it is ``public``, and whether machines of one learn where the head is (``joins``).
    """

    answers: Answers = Answers()
    names: frozenset[str] = frozenset()
    public: bool = False
    joins: bool = False


def first(found: Sequence[Found], earlier: Earlier) -> tuple[Question, ...]:
    """Which clouds: all other questions follow from that. None where there is no choice."""
    usable = [one for one in found if one.usable and one.name not in earlier.names]
    return (_clouds(usable),) if usable else ()


def questions(
    site: Facts, chosen: Sequence[Found], earlier: Earlier | None = None
) -> tuple[Question, ...]:
    """The others that make sense with these new clouds, in their order."""
    there = earlier or Earlier()
    asked = []
    if by_node := [one for one in chosen if one.by_node]:
        asked.append(_hosts(site, by_node[0], alone=len(by_node) == len(chosen)))
    if there.public or any(one.location is Location.PUBLIC for one in chosen):
        asked += [_accounts() if site.accounts_checked else _groups(site), _cap()]
    if chosen or earlier is None:
        asked.append(_shape(site, chosen))
    if any(one.spot for one in chosen):
        asked.append(_spot())
    asked.append(_max_time(site))
    if there.joins or any(one.joins for one in chosen):
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
    default = texts[question.key] or "none"

    def accepts(text: str) -> dict[str, object]:
        # In whatever form it is there.
        return {} if text == default else question.accepts(text)

    why = question.why if default == question.default else "as the configuration has it"
    return replace(question, default=default, why=why, accepts=accepts)


def answered(
    question: Question, text: str, so_far: Answers, rules: Callable[[Answers], object]
) -> Answers:
    """The answers with this one. ValueError where it is none, or where the configuration's own
    ``rules`` (which raise ConfigError) are against what would be written.
    """
    given = replace(so_far, **question.accepts(text))
    try:
        rules(given)
    except ConfigError as error:
        raise ValueError(_AT_LINE.sub("", error.problems[0])) from None
    return given


def _is_none(text: str) -> bool:
    return text.lower() in ("", "none")


def _clouds(usable: Sequence[Found]) -> Question:
    names = [one.name for one in usable]

    def accepts(text: str) -> dict[str, object]:
        chosen = _words(text)
        if not chosen or not set(chosen) <= set(names):
            form = f"one or several of {', '.join(names)}" if len(names) > 1 else names[0]
            raise ValueError(f"expected {form}")
        return {"clouds": chosen}

    return Question(
        key="clouds", text="Which clouds shall jobs grow into?", default=" ".join(names),
        why="all that can be used", accepts=accepts,
    )  # fmt: skip


def _hosts(site: Facts, rack: Found, *, alone: bool) -> Question:
    """Without hosts the cloud is left out, where others are left."""

    def accepts(text: str) -> dict[str, object]:
        pairs = [] if _is_none(text) else [word.partition("=") for word in _words(text)]
        if alone and not pairs:
            raise ValueError(f"{rack.name} needs at least one host: NODE=URL")
        for name, _, url in pairs:
            if not (name and url):
                raise ValueError("expected NODE=URL of each host, with blanks between")
            if name in site.taken:
                raise ValueError(f"{name} is a node of slurm.conf already: take another name")
        hosts = {name: url for name, _, url in pairs}
        if len(hosts) < len(pairs):
            raise ValueError("expected each host once")
        return {"hosts": hosts}

    return Question(
        key="hosts", text=f"Which hosts of {rack.name} shall be switched on, and by which BMCs?",
        default="none", accepts=accepts,
        why="NODE=URL of each, such as r1=https://r1-bmc/redfish/v1/Systems/1"
        + ("" if alone else f"; none leaves {rack.name} out"),
    )  # fmt: skip


def _names(key: str) -> Callable[[str], dict[str, object]]:
    return lambda text: {key: () if _is_none(text) else _words(text)}


def _groups(site: Facts) -> Question:
    return Question(
        key="groups", text="Which Unix groups may spend money in public clouds?", default="none",
        why=f"{site.accounting}: an account is whatever anybody types; public clouds stay shut "
        "until a group is named", accepts=_names("groups"),
    )  # fmt: skip


def _accounts() -> Question:
    return Question(
        key="accounts", text="Which accounts may spend money in public clouds?", default="none",
        why="public clouds stay shut until an account is named", accepts=_names("accounts"),
    )  # fmt: skip


def _cap() -> Question:
    def accepts(text: str) -> dict[str, object]:
        if _is_none(text):
            return {"cap": None}
        try:
            return {"cap": float(text.removeprefix("$"))}
        except ValueError:
            raise ValueError("expected dollars an hour, or none") from None

    return Question(
        key="cap", text="How many dollars an hour may be spent at most?", default="none",
        why="public clouds stay shut without a cap", accepts=accepts,
    )  # fmt: skip


def _shape(site: Facts, chosen: Sequence[Found]) -> Question:
    own = site.cpus, -(-site.memory // 1024) * 1024  # machines are sold in whole GiB
    default = fitting(chosen, own)

    def accepts(text: str) -> dict[str, object]:
        cpus, cross, memory = text.replace(" ", "").lower().partition("x")
        try:
            size = int(cpus), parse_size(memory.upper())
        except ValueError:
            raise ValueError("expected cpus x memory, such as 8x32G") from None
        if not cross or size[1] <= 256:
            hint = f"; did you mean {cpus}x{memory}G?" if memory.isdecimal() else ""
            raise ValueError(f"expected more memory than 256 MiB, found {size[1]} MiB{hint}")
        for one in chosen if size[0] > 0 else ():
            if why := missing(one, size):
                raise ValueError(why)
        return {"cpus": size[0], "memory": size[1]}

    return Question(
        key="shape", text="How large is a node?", default=told(default), accepts=accepts,
        why="as most of the site's own nodes" if default == own else
        f"the site's own are {told(own)}, which not all of these clouds have",
    )  # fmt: skip


def _spot() -> Question:
    def accepts(text: str) -> dict[str, object]:
        if text.lower() not in ("yes", "no", "y", "n"):
            raise ValueError("expected yes or no")
        return {"spot": text.lower().startswith("y")}

    return Question(
        key="spot", text="Buy spot machines before others?", default="yes",
        why="a third of the price; jobs that Slurm may not requeue never go there", accepts=accepts,
    )  # fmt: skip


def _max_time(site: Facts) -> Question:
    longest = min(site.max_time or DAY, DAY)

    def accepts(text: str) -> dict[str, object]:
        if _is_none(text):
            return {"max_time": None}
        if text.isdecimal():
            raise ValueError(f"{text} are minutes to Slurm and seconds to us: expected a unit")
        try:
            return {"max_time": float(parse_duration(text))}
        except ValueError:
            raise ValueError("expected a time such as 12h or 2d, or none") from None

    why = (
        "a day, so that no machine is paid for longer"
        if site.max_time is None or site.max_time > DAY
        else (f"as partition {site.partition}")
    )
    return Question(
        key="max_time", text="How long may a job run in the clouds?",
        default=str(format_duration(longest)), why=why, accepts=accepts,
    )  # fmt: skip


def _head(site: Facts) -> Question:
    def accepts(text: str) -> dict[str, object]:
        head = "" if _is_none(text) else text.removesuffix(".")
        why = _no_head(head) if head else ""
        if why:
            raise ValueError(f"{why}; expected the head's name or address as machines know it")
        return {"head": head}

    return Question(
        key="head", text="By which name or address do machines reach this head?",
        default="none" if _no_head(site.head) else site.head, accepts=accepts,
        why="none, if their image knows the head already" if _no_head(site.head) else
        "as SlurmctldHost; none, if their image knows the head already",
    )  # fmt: skip


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.IGNORECASE)


def _no_head(text: str) -> str:
    """Why it can be no address of a head; empty where it can. It may have a port behind it."""
    if "://" in text:
        return f"{text} is a URL"
    if text.count(":") > 1:
        return f"{text} is an IPv6 address, which is not taken here: give a name"
    host, colon, port = text.partition(":")
    if colon and not (port.isdecimal() and 0 < int(port) < 65536):
        return f"{text} has no port from 1 to 65535 after its ':'"
    if host.lower() in ("yes", "no", "y", "n"):
        return f"{host} is an answer to another question"
    if not host or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        return f"{text!r} is neither a name nor an address"
    if host.lower() == "localhost":
        return f"to a machine {host} is itself"
    return _no_address(host) if _NUMBER.fullmatch(host.rpartition(".")[2]) else ""


def _no_address(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        return f"{host} is no address: it has four numbers, each at most 255"
    nowhere = address.is_loopback or address.is_unspecified or address.is_multicast
    if nowhere or address.is_link_local or address.is_reserved:
        return f"no machine reaches {host}"
    return ""


_NO_FILES = ("dev", "proc", "sys")


def _checkpoints() -> Question:
    def accepts(text: str) -> dict[str, object]:
        if _is_none(text):
            return {"checkpoints": ""}
        path = PurePosixPath(text)
        if (
            path.root != "/"
            or len(path.parts) == 1
            or ".." in path.parts
            or path.parts[1] in _NO_FILES
        ):
            raise ValueError("expected the absolute path of a directory that all nodes share")
        return {"checkpoints": str(path)}

    return Question(
        key="checkpoints", text="Where do jobs' checkpoints go?", default="none",
        why="without a place, jobs on machines that are taken away start anew", accepts=accepts,
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.replace(",", " ").split()))
