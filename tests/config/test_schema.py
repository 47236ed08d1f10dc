"""``conf schema``: the JSON Schema accepts a file exactly when the reader converts it.

What a schema cannot say is in DIFFERENCES, by kind, and each of them has a file here.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec.inspect as mi
import pytest
import yaml
from jsonschema import Draft202012Validator

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.config import Config
from slurm_elastic.config import document as yaml_document
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.configfile import load
from slurm_elastic.config.decode import Conversion
from slurm_elastic.config.problems import Problems
from slurm_elastic.config.schema import schema

ROOT = Path(__file__).parents[2]
SCHEMA = schema()
JUDGE = Draft202012Validator(SCHEMA)
FILES = sorted(
    path
    for pattern in ("etc/*.yaml", "tests/data/config/*.yaml", "tests/data/sites/*.yaml",
                    "tests/golden/init/*.yaml", "examples/**/*.yaml")
    for path in ROOT.glob(pattern)
    if isinstance(plain := yaml.safe_load(path.read_text()), dict) and "clouds" in plain
)  # fmt: skip


def complaints_of(plain: object) -> tuple[str, ...]:
    """The complaints of the reader's conversion; rules between keys come after that."""
    document = yaml_document.YamlDocument(source="f", value=plain, lines={})
    problems = Problems(document)
    Conversion(problems, {CloudSettings: table()}).convert(mi.type_info(Config), plain, ())
    return problems.sentences()


def converted(plain: object) -> bool:
    return not complaints_of(plain)


def accepted(plain: object) -> bool:
    return JUDGE.is_valid(plain)


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conf", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(SCHEMA))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_is_accepted_when_the_reader_accepts_it(path: Path) -> None:
    plain = yaml_document.read(path.read_text(), str(path)).value
    try:
        load(path)
        is_whole = True
    except ConfigError:
        is_whole = False
    assert accepted(plain) == converted(plain)
    assert accepted(plain) >= is_whole


def test_there_are_files() -> None:
    assert len(FILES) > 10


def sections() -> Iterator[Any]:
    """The sections of the examples in the docs."""
    known = {field.encode_name: field for field in mi.type_info(Config).fields}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for n, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)):
            try:
                plain = yaml_document.read(block, page.name).value
            except ConfigError:
                continue  # with "..." for what is left out
            for key in plain if isinstance(plain, dict) else ():
                if key in known:
                    yield pytest.param(key, plain[key], id=f"{page.name}-{n}-{key}")


@pytest.mark.parametrize(("key", "plain"), list(sections()))
def test_every_example_of_the_docs_is_judged_alike(key: str, plain: object) -> None:
    field = next(f for f in mi.type_info(Config).fields if f.encode_name == key)
    problems = Problems(yaml_document.YamlDocument(source="f", value=plain, lines={}))
    Conversion(problems, {CloudSettings: table()}).convert(field.type, plain, ())
    part = {**SCHEMA["$defs"]["Config"]["properties"][key], "$defs": SCHEMA["$defs"]}  # type: ignore[index,call-overload]
    errors = [error.message for error in Draft202012Validator(part).iter_errors(plain)]
    assert (not errors) == (not problems.sentences()), (errors, problems.sentences())


# mutated files

STRANGE: tuple[object, ...] = (
    None, True, -1, 0, 1, 3, 70000, 2.5, 10**13, "", " x", "x\n", "none", "4", "15m", "4G", "1-12",
    "2026-11-02", "a\x00b", [], ["a"], ["a", "a"], [None], {}, {"a": 1}, {"strange": {}},
)  # fmt: skip


_OF_UNITS = re.compile(r"found '.*' \(text\), expected (a duration|a size|a date)")


def places(plain: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from places(value, (*path, key))
    elif isinstance(plain, list):
        for n, value in enumerate(plain):
            yield from places(value, (*path, n))


def mutated(plain: Any, path: tuple[str | int, ...], rng: random.Random) -> Any:
    whole = [copy.deepcopy(plain)]
    here: Any = whole
    step: str | int = 0
    for following in path:
        here, step = here[step], following
    action = rng.choice(["set", "drop", "add"])
    if action == "drop" and path:
        del here[step]
    elif action == "add" and isinstance(here[step], dict):
        here[step][rng.choice(["strange", "name", "size"])] = rng.choice(STRANGE)
    else:
        here[step] = rng.choice(STRANGE)
    return whole[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_mutated_files_are_judged_alike(path: Path) -> None:
    plain = yaml_document.read(path.read_text(), str(path)).value
    rng = random.Random(path.name)
    everywhere = list(places(plain))
    verdicts = set()
    for _ in range(30):
        other = mutated(plain, rng.choice(everywhere), rng)
        verdict, complaints = accepted(other), complaints_of(other)
        # The value of a text with a unit is among DIFFERENCES.
        beyond = [text for text in complaints if not _OF_UNITS.search(text)]
        if not complaints or beyond:
            assert verdict == (not complaints), (complaints, list(JUDGE.iter_errors(other)))
        verdicts.add(verdict)
    assert False in verdicts


# what a schema does not say

SITE = """
cluster: {name: demo}
clouds: [{name: c, provider: fake, location: public, types: {t: {cpus: 2, memory: 4G, price: 1}}}]
pools: [{name: p, cloud: c, nodes: n1, cpus: 2, memory: 4G}]
"""
DIFFERENCES = {
    "a whole number written as 4.0": (
        "pools: [{name: p, cloud: c, nodes: n1, cpus: 2.0, memory: 4G}]", True, False,
    ),
    "the value of a text with a unit": ("timings: {suspend_time: 0s}", True, False),
    "a date that does not exist": (
        "clouds: [{name: c, provider: fake, location: public, "  # noqa: ISC004
        "reservations: [{name: r, from: 2026-13-01, to: 2026-12-01}]}]", True, False,
    ),
}  # fmt: skip
"""By kind: a section, the schema's verdict, the conversion's verdict."""


@pytest.mark.parametrize("kind", list(DIFFERENCES))
def test_the_differences(kind: str) -> None:
    text, by_schema, by_reader = DIFFERENCES[kind]
    plain = yaml_document.read(SITE, "f").value
    assert isinstance(plain, dict)
    section = yaml_document.read(text, "f").value
    assert isinstance(section, dict)
    other = {**plain, **section}
    assert (accepted(other), converted(other)) == (by_schema, by_reader)


def test_rules_between_keys_are_the_readers_alone(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(SITE.replace("cloud: c", "cloud: other"))
    assert accepted(yaml_document.read(file.read_text(), "f").value)
    with pytest.raises(ConfigError):
        load(file)


def test_the_page_lists_them() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for kind in DIFFERENCES:
        assert f"| {kind.partition(':')[0]} |" in page


# what an editor shows


def test_every_key_has_its_sentence_and_choices() -> None:
    definitions: dict[str, Any] = SCHEMA["$defs"]  # type: ignore[assignment]
    pool = definitions["PoolSettings"]["properties"]
    assert pool["cpus"]["description"].startswith("Change it when jobs need nodes of another size")
    assert pool["markets"]["items"]["enum"] == ["reserved", "spot", "on-demand"]
    assert pool["markets"]["default"] == ["on-demand"]
    assert set(table().own_names) <= set(definitions["Cloud"]["properties"]["provider"]["enum"])


def test_a_mistake_is_told_of_the_clouds_own_kind() -> None:
    plain = yaml_document.read(SITE.replace("provider: fake", "provider: aws"), "f").value
    messages = [error.message for error in JUDGE.iter_errors(plain)]
    assert "'region' is a required property" in messages
