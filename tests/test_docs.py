"""The documentation: pages can be found, links lead somewhere, commands and files exist."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pages import blocks, shown

from slurm_elastic.cli.main import parsed
from slurm_elastic.config import blocked_clouds, configfile

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "contributing").glob("*.md")),
)
DECISIONS = sorted((ROOT / "docs" / "design").glob("[0-9]*.md"))
_OURS = re.compile(r"(?:^|[ /(])slurm-elastic (\w.*|--config .+)")
_SYNOPSIS = re.compile(r"\[-|\.\.\.|COMMAND|\w\|\w")
_PLACEHOLDERS = {"JOB": "42", "JOBID": "42"}
"""Other words in capitals are taken as they are."""
_WORD = re.compile(r"\[.*?\]|\S+")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


_LONGEST, _WIDEST = 265, 120
"""Lines of a page, and characters of a line."""


def links(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in _LINK.findall(page.read_text())}


DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"


def test_the_index_lists_every_page() -> None:
    listed = [target for target in _LINK.findall(INDEX.read_text()) if target.endswith(".md")]
    pages = [*DOCS.glob("*.md"), *DOCS.glob("*/README.md"), *DOCS.glob("contributing/*.md")]
    expected = [os.path.relpath(page, DOCS) for page in pages if page != INDEX]
    assert sorted({*listed} - {"../README.md", "../CONTRIBUTING.md"}) == sorted(expected)


def test_lines_that_return_a_node_name_the_state_of_a_node_that_is_off() -> None:
    """After state=resume a powered-down node gets no jobs once slurmctld has restarted."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            assert "state=resume" not in line or "state=idle" in line, f"{page}: {line}"


@pytest.mark.parametrize("page", sorted(set(DOCS.glob("*.md")) - {INDEX}), ids=lambda p: p.name)
def test_a_page_is_short_and_has_a_title(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= _LONGEST
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_line_is_too_wide_but_of_tables_and_examples(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ", "<!--"))]
    assert [line for line in lines if len(line) > _WIDEST] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_each_item_of_a_list_begins_a_line(page: Path) -> None:
    """An editor that wraps a paragraph joins the items of a list: the page then shows one item."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^.*[.:;)] - (?:\w|[`*\[]).*$", text, re.MULTILINE) == []


def test_the_changelog_begins_with_the_version_of_the_program() -> None:
    """Until the first release is out, this section is the only one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections == [version]


_PATH = re.compile(r"`((?:slurm_elastic/)?(?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`")


def test_every_path_in_the_architecture_page_is_there() -> None:
    paths = _PATH.findall((DOCS / "architecture.md").read_text())
    assert len(paths) > 40
    package = ROOT / "slurm_elastic"
    names = {path.name for path in package.rglob("*.py")}
    names |= {f"{path.name}/" for path in package.rglob("*") if path.is_dir()}
    missing = [
        path
        for path in paths
        if not (path in names or (ROOT / path).exists() or (package / path).exists())
    ]
    assert missing == []


def test_every_file_of_the_reading_list_is_there() -> None:
    paths = re.findall(r"^\d+\. `([^`]+)`", (DOCS / "core.md").read_text(), re.MULTILINE)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / "slurm_elastic" / path).is_file()] == []


def test_code_and_units_name_pages_that_are_there() -> None:
    """In messages, comments and unit files, as ``docs/NAME.md`` or in the directory of ``doc``."""
    named = re.compile(r"(?:docs|slurm-elastic/doc)/([a-z-]+\.md)")
    by_topic = re.compile(r"\bpage\([\"']([a-z-]+)[\"']\)|slurm-elastic help ([a-z-]+)")
    files = [
        path
        for folder in ("slurm_elastic", "etc", "ansible", "containers", "scripts", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".yml", ".service", ".timer", ".lua", ".sh", ".md", ""}
        and path.is_file()
    ]
    found = {(page, path) for path in files for page in named.findall(path.read_text("utf-8"))}
    found |= {
        (f"{one or other}.md", path)
        for path in files
        if path.is_relative_to(ROOT / "slurm_elastic")
        for one, other in by_topic.findall(path.read_text("utf-8"))
    }
    assert {page for page, _ in found} >= {"install.md", "outages.md"}
    assert [f"{path}: {page}" for page, path in sorted(found) if not (DOCS / page).exists()] == []


def test_decisions_are_numbered_in_turn_and_each_is_in_their_list() -> None:
    numbers = [int(page.name[:2]) for page in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))
    listed = _LINK.findall((DOCS / "design" / "README.md").read_text())
    assert {page.name for page in DECISIONS} <= set(listed)


_FOLDERS = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
_PLACE = re.compile(rf"`((?:{_FOLDERS})/[^`\s]*|pyproject\.toml)`")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_what_a_decision_names_is_there(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[:2]}. ")
    assert max(map(len, text.splitlines())) <= _WIDEST
    places = _PLACE.findall(text)
    assert any(one.startswith("tests/") for one in places)
    assert [one for one in places if not (ROOT / one).exists()] == []


@pytest.mark.parametrize(
    "page", [*PAGES, *(DOCS / "design").glob("*.md")], ids=lambda page: page.name
)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []


@pytest.mark.parametrize(
    "page", [*PAGES, *(DOCS / "design").glob("*.md")], ids=lambda page: page.name
)
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    aims = [((page.parent / name).resolve() if name else page, anchor) for name, anchor in found]
    assert [f"{aim.name}#{anchor}" for aim, anchor in aims if anchor not in anchors(aim)] == []


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


def test_the_first_configurations_are_whole_and_short(tmp_path: Path) -> None:
    """Each is valid as it is, and no cloud in it is shut."""
    page = "docs/first-burst.md"
    texts = [
        shown("docs/first-burst.md", "    provider: aws").text,
        shown("docs/first-burst.md", "    provider: openstack").text,
        shown("docs/first-burst.md", "    provider: opennebula").text,
        shown("docs/first-burst.md", "    provider: libvirt").text,
    ]
    assert [one.text for one in blocks(page) if one.language == "yaml"] == texts
    for text in texts:
        (tmp_path / "slurm-elastic.yaml").write_text(text)
        made = configfile.load(tmp_path / "slurm-elastic.yaml")
        assert blocked_clouds(made) == {}
        assert len(text.splitlines()) <= 20, made.clouds[0].name


def test_the_bounds_of_the_page_for_deciders_are_keys(tmp_path: Path) -> None:
    site = yaml.safe_load(shown("docs/first-burst.md", "    provider: aws").text)
    bounds = yaml.safe_load(shown("docs/decision.md", "allow: {groups:").text)
    (tmp_path / "slurm-elastic.yaml").write_text(yaml.safe_dump(site | bounds))
    assert configfile.load(tmp_path / "slurm-elastic.yaml").policies.budget.per_month == 900


def test_the_options_of_try_are_those_of_its_synopsis(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parsed(["try", "--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0].removeprefix("usage: ")
    told = shown("docs/first-light.md", "slurm-elastic try POOL").text
    assert sorted(_WORD.findall(usage.replace("[-h]", ""))) == sorted(_WORD.findall(told))


def command_lines(page: Path) -> Iterator[str]:
    """Each ``slurm-elastic ...`` in the page's code; not synopses, nor a command's mere name."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"(?<!`)`(slurm-elastic [^` ]+ [^`]+)`", text)
    for line in [*"".join(blocks).splitlines(), *inline]:
        found = _OURS.search(line)
        if found and not _SYNOPSIS.search(found[1]):
            yield found[1].strip()


def arguments(line: str) -> list[str]:
    """The words up to a comment, a pipe or the end of a substitution, as a shell reads them."""
    words = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    words.whitespace_split = True
    plain = itertools.takewhile(lambda word: word.strip("();<>|&"), words)
    return [_PLACEHOLDERS.get(word, word) for word in plain]


COMMANDS = [(page.name, line) for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_is_one(page: str, line: str) -> None:
    words = arguments(line)
    if words[-1] in ("-h", "--help"):
        with pytest.raises(SystemExit, match="0"):
            parsed(words)
    else:
        assert parsed(words).command, f"{page}: {line}"


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 40


@pytest.mark.parametrize("page", ["README.md", "docs/first-burst.md"])
def test_offers_comes_after_what_makes_the_ledger(page: str) -> None:
    """It reads the daemon's ledger and the cluster's UUID: in a first installation neither is there
    before these steps.
    """
    text = (ROOT / page).read_text()
    steps = text[text.index("conf install --restart") :]
    assert "slurm-elastic offers" not in text[: text.index("conf install --restart")]
    assert steps.index("enable --now slurm-elasticd") < steps.index("slurm-elastic offers")


def test_out_again_names_all_that_may_stand_on_a_head() -> None:
    text = (DOCS / "install.md").read_text().partition("## Out again")[2]
    # The installer knows its units and other files (tests/package/test_installer.py).
    assert "/opt/slurm-elastic/install --uninstall" in text
    network = (DOCS / "network.md").read_text()
    for left in ("nft delete table inet slurm_elastic_hub", "ip link delete wg-se"):
        assert left in network
        assert left in text
