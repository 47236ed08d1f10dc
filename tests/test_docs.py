"""The documentation: pages can be found, links lead somewhere, commands are what they are called."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.cli.main import parsed
from slurm_elastic.config import blocked_clouds, configfile

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_OURS = re.compile(r"(?:^|[ /(])slurm-elastic (\w.*|--config .+)")
_SYNOPSIS = re.compile(r"\[-|\.\.\.|COMMAND|\w\|\w")
_PLACEHOLDERS = {"JOB": "42", "JOBID": "42"}
"""Other words in capitals are taken as they are."""
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def links(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in _LINK.findall(page.read_text())}


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    assert set((ROOT / "docs").glob("*.md")) - {index} <= links(index)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []


def test_the_first_configurations_are_whole_and_short(tmp_path: Path) -> None:
    """Each is valid as it is, and no cloud in it is shut."""
    page = (ROOT / "docs" / "first-burst.md").read_text()
    texts = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(texts) == 3
    for text in texts:
        (tmp_path / "slurm-elastic.yaml").write_text(text)
        made = configfile.load(tmp_path / "slurm-elastic.yaml")
        assert blocked_clouds(made) == {}
        assert len(text.splitlines()) <= 20, made.clouds[0].name


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
