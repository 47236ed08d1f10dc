"""Text for people is plain characters, whoever's words are in it."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.cli import streams
from slurm_elastic.cli.machine_readable import write_csv
from slurm_elastic.cli.streams import MAX_LOG_LINE_LENGTH, PlainFormatter, visible

LOG = (
    "import logging; from slurm_elastic.cli.streams import log_plainly; "
    "log_plainly('INFO'); logging.getLogger('x').info('said')"
)

TEXT = st.text(st.characters(exclude_categories=()))


def logged(text: str, *, error: Exception | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("x")
    logger.addHandler(handler)
    logger.warning("job comment=%s", text, exc_info=error)
    return stream.getvalue()


def test_a_comment_neither_rules_a_terminal_nor_looks_like_a_line_of_ours() -> None:
    said = logged("ok\x1b]0;owned\x07\x9b2J\n2026-01-01 ERROR root all is lost\r\u202egnp")
    assert said == (
        "WARNING job comment=ok\\x1b]0;owned\\x07\\x9b2J"
        "\\n2026-01-01 ERROR root all is lost\\r\\u202egnp\n"
    )


@given(TEXT)
def test_every_message_is_one_line_that_can_be_printed(text: str) -> None:
    line = logged(text)
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert visible(line) == line
    line.encode()


def test_a_traceback_keeps_its_lines_and_no_control_characters() -> None:
    said = logged("x", error=ValueError("\x1b[2J"))
    assert "\x1b" not in said
    assert "  ValueError: \\x1b[2J" in said.splitlines()


def test_no_line_of_a_traceback_looks_like_a_line_of_ours() -> None:
    said = logged("x", error=ValueError("no\n2026-01-01 ERROR root all is lost\n\nWARNING y"))
    first, *more = said.splitlines()
    assert first == "WARNING job comment=x"
    assert more[-1] == "  WARNING y"
    assert all(line.startswith("  ") for line in more)


def test_an_answer_in_an_error_does_not_fill_the_log() -> None:
    said = logged("<xml>" * 1_000_000)
    assert len(said) < MAX_LOG_LINE_LENGTH + 100
    assert said.endswith("characters more\n")


@pytest.mark.parametrize("journal", [True, False])
def test_a_line_in_the_journal_has_one_time_stamp(tmp_path: Path, *, journal: bool) -> None:
    with open(tmp_path / "stderr", "w+") as file:
        found = os.fstat(file.fileno())
        stream = f"{found.st_dev}:{found.st_ino}" if journal else "8:1"
        subprocess.run(
            [sys.executable, "-c", LOG], stderr=file, env=os.environ | {"JOURNAL_STREAM": stream},
            check=True,
        )  # fmt: skip
        file.seek(0)
        said = file.read()
    assert said.endswith("INFO x said\n")
    assert said.startswith("INFO") is journal


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("physics", "physics"),
        ('=HYPERLINK("http://x")', '"\'=HYPERLINK(""http://x"")"'),
        (" @SUM(1)", "' @SUM(1)"),
        ("+1+1", "'+1+1"),
        ("\uff1d1", "'\uff1d1"),
        ("-0.250000", "-0.250000"),
        ("a\x1b[2Jb\r\nc\t=1", r"a\x1b[2Jb\r\nc\t=1"),
        ("\t=1", r"\t=1"),
        (None, '""'),
        (1.5, "1.5"),
    ],
)
def test_no_value_rules_a_spreadsheet_or_a_terminal(
    value: object, cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv([[value]])
    assert capsys.readouterr().out == f"{cell}\n"


def test_values_are_written_in_one_way() -> None:
    package = Path(streams.__file__).parents[1]
    ways = [
        p for p in package.rglob("*.py") if re.search(r"csv\.(writer|DictWriter)", p.read_text())
    ]
    assert [p.name for p in ways] == ["machine_readable.py"]
