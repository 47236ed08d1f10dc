"""Draws configuration files from the schema of ``conf schema``: a valid file, changed step by step. A step sets one key, anywhere, to a value that the schema allows or a neighbour of one. It is
kept if the reader accepts the file. So each key is drawn that the schema has, also a key that is
added later, and each refused step is an invalid neighbour of a valid file.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, configfile, settled
from slurm_elastic.config.check import check
from slurm_elastic.config.document import YamlDocument, write
from slurm_elastic.config.document import read as document_of
from slurm_elastic.config.schema import schema

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/drawn/*.yaml",
    "etc/*.yaml", "tests/data/config/*.yaml", "tests/data/sites/*.yaml", "tests/golden/init/*.yaml",
    "examples/**/*.yaml",
)  # fmt: skip
DEFINITIONS: dict[str, Any] = schema()["$defs"]  # type: ignore[assignment]
SOURCE = "drawn.yaml"
SITE = """
cluster: {name: demo}
clouds: [{name: c, provider: fake, location: public, types: {t: {cpus: 2, memory: 4G, price: 1}}}]
pools: [{name: p, cloud: c, nodes: "n[1-4]", cpus: 2, memory: 3G}]
"""
COMPLAINT = re.compile(rf"{re.escape(SOURCE)}:\d+: .+", re.DOTALL)
_PARTS = re.compile(
    rf"{re.escape(SOURCE)}:\d+: (?P<path>\S.*?): found (?P<found>.*?), expected (?P<expected>.*)"
)
_STEPS = re.compile(r"(?:^|\.)([\w-]+)|\[(\d+)\]| \([^)]*\)")
_UNCOMMENT = re.compile(r"(?m)^(\s*)# ?(?=\s*(?:- )?[\w.]+:(?:\s|$)|\s*- )")
"""Before a key or an item that stands in a comment."""
_COMMENTED = re.compile(r"\n(?=\w)")
"""Before each key of the whole file, so that one that cannot be read spoils no other."""
_NUMBERS = (0, 1, 2, 3, 8, 60, 90, 3600, 0.5)
_DURATIONS = ("1s", "45s", "3m", "20m", "2h", "10d")
_SIZES = ("1G", "2048M", "2T")
_DATES = ("2026-01-01", "2026-11-30T12:00:00Z", "2027-06-01")
VALUES_TRIED = 8
_STRANGE = (-1, "", "none", "no", [], {}, None, "a b", 10**13, "zwei\u00e9", [None], True)


class Key(NamedTuple):
    """A key of an object of the schema's definition ``of``."""

    of: str
    name: str


class Step(NamedTuple):
    """Indices of an object of the file, of one of its keys, and of a value for it."""

    place: int
    key: int
    value: int


class Refused(NamedTuple):
    """A step that the reader refused, with the file after it and the complaints."""

    key: Key
    value: object
    document: dict[str, Any]
    complaints: Sequence[str]


class Drawn(NamedTuple):
    """A valid file, as plain values and as read, and what was refused on the way."""

    document: dict[str, Any]
    config: Config
    refused: Sequence[Refused]


def draw(base: int, steps: Sequence[Step]) -> Drawn:
    """Apply the steps to one of ``bases``, without those that the reader refuses.

    Raises whatever the reader raises but ConfigError: a traceback is a fault.
    """
    document = bases()[base % len(bases())]
    config, refused = read(document), []
    for step in steps:
        changed, key, value = _applied(document, step)
        try:
            config = read(changed)
        except ConfigError as error:
            refused.append(Refused(key, value, changed, str(error).splitlines()))
        else:
            document = changed
    return Drawn(document, config, refused)


def draw_keys(
    document: dict[str, Any], steps: Sequence[Step], keys: Sequence[Key],
    may: Callable[[dict[str, Any]], bool],
) -> dict[str, Any]:  # fmt: skip
    """The valid file after steps that each set one of these keys. Of a few values the first is taken
    that the reader accepts, perhaps after its complaints were followed, and after which the file
    ``may`` be so. A step without such a value changes nothing.
    """
    for step in steps:
        document = _with_step(document, step, keys[step.key % len(keys)], may) or document
    return document


def _with_step(
    document: dict[str, Any], step: Step, key: Key, may: Callable[[dict[str, Any]], bool],
    inner: str = "",
) -> dict[str, Any] | None:  # fmt: skip
    """``inner``: only values that have an object of that definition."""
    places = [n for n, (of, _) in enumerate(objects(document)) if of == key.of]
    if not places:  # an object for it comes first
        made = _with_parent(document, step, key.of, may)
        return made and (_with_step(made, step, key, may, inner) or made)
    place = places[step.place % len(places)]
    rule = _properties(key.of)[key.name]
    here = list(objects(document))[place][1]
    now = here.get(key.name, rule.get("default"))
    values = [v for v in _values(key, here.get(key.name), document) if v not in (now, None)]
    if inner:
        values = [v for v in values if any(of == inner for of, _ in _objects(rule, v))]
    for value in _in_turn(key, values, step.value):
        changed = copy.deepcopy(document)
        list(objects(changed))[place][1][key.name] = copy.deepcopy(value)
        followed = follow(changed, rounds=2) if may(changed) else None
        if followed is not None and may(followed):
            return followed
    return None


def _in_turn(key: Key, values: Sequence[Any], chance: int) -> Sequence[Any]:
    """A few of the values: some that files of the repository have or the reader lists, and some
    others, either of them first.
    """
    rng = random.Random(chance)
    known = [v for v in (*_examples().get(key, ()), *_listed(key)) if v in values]
    parts = [rng.sample(some, min(VALUES_TRIED // 2, len(some))) for some in (known, values)]
    rng.shuffle(parts)
    return [value for part in parts for value in part]


def _with_parent(
    document: dict[str, Any], step: Step, of: str, may: Callable[[dict[str, Any]], bool]
) -> dict[str, Any] | None:
    """The file with an object of that definition in one of the objects that it has."""
    here = {of for of, _ in objects(document)}
    every = list(_parents(of))
    parents = [parent for parent in every if parent.of in here] or every
    made = _with_step(document, step, parents[step.place % len(parents)], may, inner=of)
    return made if made and any(of == other for other, _ in objects(made)) else None


def read(document: dict[str, Any]) -> Config:
    """The configuration of the file with these values."""
    return configfile.parse(write(document), SOURCE)


def read_values(document: dict[str, Any]) -> Config:
    """As ``read``, of the values without their text: six times as fast."""
    values = YamlDocument(source=SOURCE, value=document, lines={})
    return settled(configfile._converted(values, "", Config, "keys", check))


def keys_in(document: dict[str, Any]) -> Iterator[Key]:
    """Each key that the file has, by the schema's definition of its object."""
    for of, here in objects(document):
        yield from (Key(of, name) for name in here if name in _properties(of))


def all_keys() -> Iterator[Key]:
    """Each key of the schema."""
    for of in DEFINITIONS:
        yield from (Key(of, name) for name in _properties(of) if of != "Cloud")


def reach(key: Key) -> dict[str, Any] | None:
    """A valid file with that key. None if no value of it is accepted, in no file."""
    files = _with_object(key.of)
    has_it = (document for document in files if key in keys_in(document))
    made = (_with_key(document, key) for document in files)
    return next(filter(None, itertools.chain(has_it, made)), None)


def _with_key(document: dict[str, Any], key: Key, most: int = 150) -> dict[str, Any] | None:
    """The file with that key, by the first of its values that the reader accepts."""
    for n, (of, _) in enumerate(objects(document)):
        if of != key.of:
            continue
        for value in itertools.islice(_values(key, None, document), most):
            changed = copy.deepcopy(document)
            list(objects(changed))[n][1][key.name] = copy.deepcopy(value)
            if value is None:
                continue
            followed = follow(changed)
            if followed is not None and key in keys_in(followed):
                return followed
    return None


@functools.cache
def _with_object(of: str) -> Sequence[dict[str, Any]]:
    """Valid files with an object of that definition: of ``bases`` if there are, else made."""
    found = [base for base in bases() if any(of == other for other, _ in objects(base))]
    return found or list(itertools.islice(_made_with(of), 3))


def _made_with(of: str) -> Iterator[dict[str, Any]]:
    for parent in _parents(of):
        for document in _with_object(parent.of):
            for value in _values(parent, None, document):
                changed = copy.deepcopy(document)
                here = next(here for other, here in objects(changed) if other == parent.of)
                old = here.get(parent.name)
                is_list = isinstance(old, list) and isinstance(value, list)
                here[parent.name] = [*old, *value] if is_list else copy.deepcopy(value)
                has_it = any(of == other for other, _ in objects(changed))
                followed = follow(changed) if has_it else None
                if followed is not None and any(of == other for other, _ in objects(followed)):
                    yield followed
                    break


def _parents(of: str) -> Iterator[Key]:
    """The keys whose value may be an object of that definition."""
    name = "Cloud" if "provider" in _properties(of) else of
    for key in all_keys():
        if f"#/$defs/{name}'" in str(_properties(key.of)[key.name]) and key.of != of:
            yield key


def follow(document: dict[str, Any], rounds: int = 4) -> dict[str, Any] | None:
    """The file after a person has followed the reader's complaints. None if that does not lead to
    a valid file in that many rounds.
    """
    for _ in range(rounds):
        try:
            read_values(document)
        except ConfigError as error:
            followed = [_followed(document, line) for line in str(error).splitlines()]
            if not any(followed):
                return None
        else:
            return document
    return None


def _followed(document: dict[str, Any], complaint: str) -> bool:
    """Do what one complaint asks for, in place. Whether it says what to do."""
    found = _PARTS.fullmatch(complaint)
    if found is None:
        return False
    here: Any = {"": document}
    last: str | int = ""
    try:
        for name, index in _STEPS.findall(found["path"]):
            inner = here[last]
            if name and isinstance(last, str) and not isinstance(inner, dict):
                last = f"{last}.{name}"  # of a name with a dot
            elif name or index:
                here, last = inner, int(index) if index else name
        return _change(here, last, found["expected"], found["found"])
    except (KeyError, IndexError, TypeError):
        return False


def _change(here: Any, last: str | int, expected: str, actual: str) -> bool:
    if missing := re.match(r"no '(\w+)'", actual):
        here[last][missing[1]] = "a"
    elif re.match(r"no (such )?(key|section|file|gres)\b|none:", expected):
        del here[last]
    elif both := re.match(r"(\w+) and \w+$", actual):
        del here[last][both[1]]
    elif value := _named(expected):
        if actual == f"'{last}'" and here[last] != last:  # the key is what is wrong
            here[value] = here.pop(last)
        else:
            here[last] = value
    else:
        return False
    return True


def _named(expected: str) -> Any:
    """The value that the complaint names."""
    if words := re.search(r"one of ([^:;()]+)", expected):
        return re.split(r", (?:or )?| or ", words[1])[0].strip("'")
    if example := re.search(r"such as (\[[^]]*\]|'[^']*'|\S+?)(?=[,;:]?(?: |$))", expected):
        return _plain(example[1])
    return "/srv/drawn" if "an absolute path" in expected else None


def _applied(document: dict[str, Any], step: Step) -> tuple[dict[str, Any], Key, object]:
    changed = copy.deepcopy(document)
    everywhere = list(objects(changed))
    of, here = everywhere[step.place % len(everywhere)]
    names = sorted(_properties(of))
    name = names[step.key % len(names)]
    choice, is_strange = divmod(step.value, 4)
    values = _STRANGE if is_strange == 3 else _values(Key(of, name), here.get(name), document)
    value = values[choice % len(values)]
    here[name] = copy.deepcopy(value)
    return changed, Key(of, name), value


def objects(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of the file, with the name of its definition."""
    return _objects({"$ref": "#/$defs/Config"}, document)


def _objects(rule: dict[str, Any], value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(value, dict | list):
        return
    of = rule.get("$ref", "").rpartition("/")[2]
    if of == "Cloud" and isinstance(value, dict):
        of = _cloud_definition(str(value.get("provider")))
    if of and of != "Text" and isinstance(value, dict):
        yield of, value
        for name, inner in _inner(of):
            if name in value:
                yield from _objects(inner, value[name])
    for choice in rule.get("anyOf", ()):
        yield from _objects(choice, value)
    if isinstance(value, list) and "items" in rule:
        yield from itertools.chain.from_iterable(_objects(rule["items"], v) for v in value)
    more = rule.get("additionalProperties")
    if isinstance(value, dict) and isinstance(more, dict):
        yield from itertools.chain.from_iterable(_objects(more, v) for v in value.values())


@functools.cache
def _inner(of: str) -> Sequence[tuple[str, dict[str, Any]]]:
    """The keys of that definition below which objects may be."""
    return [(name, rule) for name, rule in _properties(of).items() if "#/$defs/" in str(rule)]


def _properties(of: str) -> dict[str, Any]:
    return DEFINITIONS[of].get("properties", {}) if of in DEFINITIONS else {}


@functools.cache
def _cloud_definition(provider: str) -> str:
    return next(
        (n for n, d in DEFINITIONS.items()
         if n != "Cloud" and _properties(n).get("provider", {}).get("const") == provider
         and "name" in d.get("required", ())),
        "FakeCloud",
    )  # fmt: skip


# the values of a key


def _values(key: Key, now: object, document: dict[str, Any]) -> list[Any]:
    """Values for that key, in a fixed order: what the repository's files have, and what its schema
    allows, with the names of the file.
    """
    rule = _properties(key.of)[key.name]
    found = [*_examples().get(key, ()), *_listed(key)]
    found += _Allowed(_names(document)).values(rule, now)
    return found or list(_STRANGE)


@functools.cache
def _listed(key: Key) -> Sequence[str]:
    """The words for a key of text that the reader lists when it refuses another one."""
    if "'$ref': '#/$defs/Text'" not in str(_properties(key.of)[key.name]):
        return ()
    for base in bases():
        document = copy.deepcopy(base)
        here = next((here for of, here in objects(document) if of == key.of), None)
        if here is None:
            continue
        here[key.name] = "a"
        try:
            read(document)
        except ConfigError as error:
            lists = re.findall(r"one of ([^:;()\n]+)", str(error))
            words = [w.strip(" '") for text in lists for w in re.split(r", (?:or )?| or ", text)]
            return [word for word in dict.fromkeys(words) if re.fullmatch(r"[\w.-]+", word)]
        return ()
    return ()


def _names(document: dict[str, Any]) -> tuple[str, ...]:
    """The names that the keys of the file may mean: clouds, pools, types, zones."""
    names = {str(here["name"]) for _, here in objects(document) if "name" in here}
    for cloud in document["clouds"]:
        names.update(map(str, (*(cloud.get("types") or ()), *(cloud.get("zones") or ()))))
    return tuple(sorted(names))


class _Allowed:
    """The values that a schema allows, small ones first. ``words``: the texts among them."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = ("a", *words)

    def values(self, rule: dict[str, Any], now: object = None, depth: int = 0) -> Iterator[Any]:
        """``now``: the value that the file has."""
        if "const" in rule:
            yield rule["const"]
        yield from rule.get("enum", ())
        if "$ref" in rule:
            yield from self._of_definition(rule["$ref"].rpartition("/")[2], depth)
        for choice in rule.get("anyOf", ()):
            yield from self.values(choice, now, depth)
        yield from self._of_type(rule, now, depth)

    def _of_type(self, rule: dict[str, Any], now: object, depth: int) -> Iterator[Any]:
        match rule.get("type"):
            case "integer":
                yield from (n for n in _NUMBERS if isinstance(n, int))
            case "number":
                yield from _NUMBERS
            case "boolean":
                yield from (True, False)
            case "string":
                pattern = re.compile(rule.get("pattern", ""))
                yield from filter(pattern.search, (*_DURATIONS, *_SIZES, *_DATES))
            case "null":
                yield None
            case "array":
                yield from self._arrays(rule, now, depth)
            case "object" if isinstance(rule.get("additionalProperties"), dict):
                inner = [
                    *itertools.islice(self.values(rule["additionalProperties"], None, depth), 4)
                ]
                old = now if isinstance(now, dict) else {}
                yield from ({**old, word: value} for word in self._words for value in inner)

    def _arrays(self, rule: dict[str, Any], now: object, depth: int) -> Iterator[Any]:
        items = [*itertools.islice(self.values(rule.get("items", {}), None, depth + 1), 64)]
        if isinstance(now, list):
            yield from ([*now, item] for item in items)
            yield now[:-1]
        yield from ([item] for item in items)
        yield items[:2]

    def _of_definition(self, of: str, depth: int) -> Iterator[Any]:
        """Objects of that definition: those of the repository's files, the least one, and some with
        more keys.
        """
        if of == "Text":
            yield from self._words
            return
        yield from _whole_examples().get(of, ())
        if depth < 3:
            yield from (self._object(of, random.Random(f"{of} {n}"), depth) for n in range(12))

    def _object(self, of: str, rng: random.Random, depth: int) -> dict[str, Any]:
        required = DEFINITIONS[of].get("required", ())
        others = sorted(_properties(of).keys() - set(required))
        more = rng.sample(others, min(len(others), rng.randrange(4)))
        made = {}
        for name in (*required, *more):
            values = [*itertools.islice(self.values(_properties(of)[name], None, depth + 1), 24)]
            if values:
                made[name] = rng.choice(values)
        return made


# the repository's files


@functools.cache
def bases() -> Sequence[dict[str, Any]]:
    """``SITE``, and each file of the repository that the reader accepts as it is."""
    found = [_plain(SITE)]
    for path in sorted(p for pattern in FILES for p in ROOT.glob(pattern)):
        plain = _plain(path.read_text())
        if isinstance(plain, dict) and "clouds" in plain:
            with contextlib.suppress(ConfigError):
                read(plain)
                found.append(plain)
    return found


def _plain(text: str) -> Any:
    """The values of YAML as the reader sees them: a date is text."""
    return document_of(text, SOURCE).value


@functools.cache
def _example_objects() -> Sequence[tuple[str, dict[str, Any]]]:
    return [pair for plain in (*bases(), *_sections()) for pair in objects(plain)]


def _sections() -> Iterator[dict[str, Any]]:
    """The examples of the pages, and those in the comments of the example file."""
    pages = (path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))
    blocks = [
        block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    ]
    example = (ROOT / "etc" / "slurm-elastic.yaml").read_text()
    top = set(_properties("Config"))
    for text in (*blocks, *_COMMENTED.split(_UNCOMMENT.sub(r"\1", example))):
        with contextlib.suppress(ConfigError):
            plain = _plain(text)
            if isinstance(plain, dict) and plain.keys() & top:
                yield {name: value for name, value in plain.items() if name in top}


@functools.cache
def _examples() -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = {}
    for of, here in _example_objects():
        for name, value in here.items():
            if name not in _properties(of):
                continue
            known = found.setdefault(Key(of, name), [])
            if value not in known:
                known.append(value)
    return found


@functools.cache
def _whole_examples() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for of, here in _example_objects():
        of = "Cloud" if "provider" in here else of
        if here not in found.setdefault(of, []):
            found[of].append(here)
    return found
