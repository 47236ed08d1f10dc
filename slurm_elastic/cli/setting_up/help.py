"""``slurm-elastic help``: show the installed pages of the documentation."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_elastic.base import pages
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible

MAX_NEAR = 5
"""An unknown topic gets at most so many suggestions."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "help",
        description="Show a page of the documentation of this release, on a terminal with $PAGER "
        "or less. Without a topic, list all topics. 'slurm-elastic COMMAND -h' explains a command.",
        epilog=examples("slurm-elastic help first-burst", "slurm-elastic help"),
    )
    parser.add_argument(
        "topic", metavar="TOPIC", nargs="?", help="the page, such as install or images"
    )
    parser.add_argument("--path", action="store_true", help="print the path of the page only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    place = pages.directory()
    if place is None:
        raise SlurmElasticError(
            "the pages are not installed here; they are in the directory docs of the sources"
        )
    topics = pages.topics(place)
    if args.topic is None:
        return _print(f"{place}\n" if args.path else _listed(topics))
    path = topics.get(args.topic.removesuffix(".md"))
    if path is None:
        raise ConfigError(f"there is no page {visible(args.topic)!r}; {_hint(args.topic, topics)}")
    if args.path:
        return _print(f"{path}\n")
    return _show(visible(path.read_text(encoding="utf-8")))


def _hint(topic: str, topics: Mapping[str, Path]) -> str:
    """A hint for an unknown topic: the topics with a similar name or text."""
    near = difflib.get_close_matches(topic, topics, n=MAX_NEAR)
    near += [name for name in topics if topic.lower() in name]
    if len(topic) > 2:
        near += _that_explain(topic, topics)
    if not near and len(topic) > 2:
        near = _that_mention(topic, topics)
    if near:
        return f"near ones: {', '.join(dict.fromkeys(near))}"
    return "'slurm-elastic help' lists all"


def _that_explain(word: str, topics: Mapping[str, Path]) -> list[str]:
    """The pages with the word in a heading, then pages that show it as a command."""
    whole_word = rf"{re.escape(word)}\b"
    heading = re.compile(rf"^#+ .*\b{whole_word}", re.IGNORECASE | re.MULTILINE)
    command = re.compile(rf"\bslurm-elastic {whole_word}")
    counts = {}
    for name, path in topics.items():
        text = path.read_text(encoding="utf-8")
        counts[name] = (len(heading.findall(text)), len(command.findall(text)))
    ranked = sorted(counts, key=counts.__getitem__, reverse=True)
    return [name for name in ranked if any(counts[name])][:MAX_NEAR]


def _that_mention(word: str, topics: Mapping[str, Path]) -> list[str]:
    """The pages that use a word most often."""
    counts = {
        name: path.read_text(encoding="utf-8").lower().count(word.lower())
        for name, path in topics.items()
    }
    ranked = sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])
    return ranked[:MAX_NEAR]


def _listed(topics: Mapping[str, Path]) -> str:
    """All topics with the titles of their pages."""
    width = max(map(len, topics))
    lines = (f"{name:<{width}}  {_title(path)}" for name, path in topics.items())
    return visible("\n".join([*lines, ""]))


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().strip().removeprefix("# ")


def _print(text: str) -> int:
    print(text, end="")
    return 0


def _show(text: str) -> int:
    """Show a page, on a terminal through a pager."""
    pager = _pager() if sys.stdout.isatty() else ()
    if not pager:
        return _print(text)
    # less ends by itself if the text fits on the screen (F) and leaves it there (X).
    environment = {"LESS": "-FX", **os.environ}
    done = subprocess.run([*pager], input=text, text=True, check=False, env=environment)
    return 0 if done.returncode in (0, 141) else 1


def _pager() -> tuple[str, ...]:
    """The user's pager, or else the first installed pager, as a command. () if there is none."""
    for command in (os.environ.get("PAGER", ""), "less", "more"):
        command_line = _split(command)
        if command_line and shutil.which(command_line[0]):
            return command_line
    return ()


def _split(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()
