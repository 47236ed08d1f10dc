"""The command line's frame: which module is loaded, which exit code, what is said, no traceback."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import patience
from rich.text import Text

from slurm_elastic.base.errors import (
    ConfigError,
    ProviderError,
    SandboxError,
    SlurmElasticError,
    SlurmError,
)
from slurm_elastic.cli import main as frame
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate.console import plain

Run = Callable[[argparse.Namespace], int]
Install = Callable[[Run], None]

# A sub-command of one's own, for the tests that need a process.
PROBE = """
import sys, types
from slurm_elastic.cli import main as frame
probe = types.ModuleType("slurm_elastic.cli.probe")
def run(args):
    {body}
def add(subparsers):
    subparsers.add_parser("probe").set_defaults(run=run)
probe.add = add
sys.modules["slurm_elastic.cli.probe"] = probe
frame.COMMANDS = {{"probe": "for tests"}}
sys.exit(frame.main(["probe"]))
"""


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make ``slurm-elastic probe`` run the given function."""

    def install(run: Run) -> None:
        module = types.ModuleType("slurm_elastic.cli.probe")

        def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
            parser = subparsers.add_parser("probe", help="for tests")
            parser.add_argument("words", nargs="*")
            parser.set_defaults(run=run)

        module.add = add  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "slurm_elastic.cli.probe", module)
        monkeypatch.setattr(frame, "COMMANDS", {"probe": "for tests", "other": "not loaded"})

    return install


def run_process(
    *words: str, code: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code is not None else ["-P", "-m", "slurm_elastic.cli.main"]
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_the_commands_exit_code_is_the_programs(probe: Install) -> None:
    for code in (0, 1, 3):
        probe(lambda _args, code=code: code)
        assert main(["probe"]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a is wrong", "b is wrong"), 2),
        (SandboxError("no slurmctld"), 2),
        (SlurmError(("scontrol", "ping"), 1, "no answer\n"), 1),
        (ProviderError("aws", "AuthFailure", "no rights"), 1),
        (SlurmElasticError("something"), 1),
    ],
)
def test_our_errors_become_one_message_and_a_code(
    error: SlurmElasticError, code: int, probe: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_args: argparse.Namespace) -> int:
        raise error

    probe(run)
    assert main(["probe"]) == code
    assert capsys.readouterr() == ("", f"slurm-elastic: {error}\n")


def test_errors_of_the_system_name_the_file(
    probe: Install, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    probe(lambda _args: len((tmp_path / "gone").read_text()))
    assert main(["probe"]) == 1
    said = capsys.readouterr().err
    assert said == f"slurm-elastic: {tmp_path}/gone: No such file or directory\n"


def test_control_characters_reach_no_terminal(
    probe: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_args: argparse.Namespace) -> int:
        plain().print(Text("a\x1b[31mb\x9bc\n\td"))
        raise ConfigError("x\x1b]0;title\x07y\nz")

    probe(run)
    assert main(["probe"]) == 2
    said = capsys.readouterr()
    assert [line.strip() for line in said.out.splitlines()] == [r"a\x1b[31mb\x9bc", "d"]
    assert said.err == "slurm-elastic: x\\x1b]0;title\\x07y\nz\n"


def test_an_unknown_option_does_not_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--pool\x1b]0;title\x07"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --pool\\x1b]0;title\\x07\n" in capsys.readouterr().err


def test_an_unknown_key_and_a_file_name_are_shown_without_obeying_them(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('"\\e[31mkey": 1\n')
    done = run_process("--config", str(path), "status")
    assert done.returncode == 2
    assert r"x.yaml:1: \x1b[31mkey: found unknown key '\x1b[31mkey'" in done.stderr
    missing = run_process("--config", str(tmp_path / "\x1b[31m.yaml"), "status")
    assert r"/\x1b[31m.yaml: cannot be read" in missing.stderr
    assert "\x1b" not in done.stderr + missing.stderr


def test_json_of_text_that_was_no_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": "m\udcfcller", "b": [1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": "m\udcfcller", "b": [1.5]}


def test_a_programming_error_is_not_hidden(probe: Install) -> None:
    def run(_args: argparse.Namespace) -> int:
        raise KeyError("bug")

    probe(run)
    with pytest.raises(KeyError):
        main(["probe"])


@pytest.mark.parametrize(
    "argv",
    [
        ["--config", "/x/y.yaml", "probe", "a"],
        ["probe", "--config", "/x/y.yaml", "a"],
        ["probe", "a", "--config=/x/y.yaml"],
        ["probe", "a", "--config", "/x/y.yaml"],
    ],
)
def test_config_may_stand_anywhere(argv: list[str], probe: Install) -> None:
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    probe(run)
    assert main(argv) == 0
    assert (seen[0].config, seen[0].words) == (Path("/x/y.yaml"), ["a"])


def test_what_follows_two_dashes_is_the_commands(probe: Install) -> None:
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    probe(run)
    assert main(["probe", "--", "--config", "x"]) == 0
    assert (seen[0].config, seen[0].words) == (Path(frame.DEFAULT_CONFIG), ["--config", "x"])


@pytest.mark.parametrize(("value", "expected"), [("/e/s.yaml", "/e/s.yaml"), ("", None)])
def test_the_environment_sets_the_default(
    value: str, expected: str | None, probe: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args.config)
        return 0

    probe(run)
    monkeypatch.setenv("SLURM_ELASTIC_CONFIG", value)
    assert main(["probe"]) == 0
    assert main(["--config", "/c.yaml", "probe"]) == 0
    assert seen == [Path(expected or frame.DEFAULT_CONFIG), Path("/c.yaml")]


def test_other_commands_are_not_loaded(probe: Install) -> None:
    probe(lambda _args: 0)
    main(["probe"])
    assert "slurm_elastic.cli.other" not in sys.modules


def test_a_command_that_cannot_be_loaded_names_itself(
    probe: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(lambda _args: 0)
    assert main(["other"]) == 1
    assert capsys.readouterr().err == (
        "slurm-elastic: the command 'other' cannot be loaded:"
        " No module named 'slurm_elastic.cli.other'\n"
    )


def test_help_names_every_command_and_loads_none() -> None:
    code = (
        "import sys\nfrom slurm_elastic.cli import main as frame\n"
        "try:\n    frame.main(['-h'])\nexcept SystemExit as end:\n    code = end.code\n"
        "loaded = {n for n in frame.COMMANDS if f'slurm_elastic.cli.{frame.MODULES[n]}' in sys.modules}\n"
        "sys.exit(f'loaded {loaded}' if loaded or 'boto3' in sys.modules else code)\n"
    )
    done = run_process(code=code)
    assert (done.returncode, done.stderr) == (0, "")
    for name, summary in frame.COMMANDS.items():
        assert name in done.stdout
        assert summary.split()[0] in done.stdout
    assert "--config FILE" in done.stdout


def test_version() -> None:
    done = run_process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("slurm-elastic ")


def test_no_command_shows_the_help_and_fails() -> None:
    done = run_process()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: slurm-elastic")
    for name in frame.COMMANDS:
        assert f"\n  {name} " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "there is no command 'bogus'; commands: quickstart, sandbox,"),
        (["statsu"], "there is no command 'statsu'; did you mean 'status'?"),
        (["--bogus", "status"], "unrecognized arguments: --bogus"),
        (["status", "--config"], "argument --config: expected one argument"),
    ],
)
def test_wrong_use_is_exit_2_with_the_usage(words: list[str], said: str) -> None:
    done = run_process(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("speed", ["nan", "inf", "-1", "1e400", ""])
def test_a_speed_that_is_none_begins_no_sandbox(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], speed: str
) -> None:
    """JSON has no NaN: with one in its file no command could end the sandbox again."""
    place = tmp_path / "sandbox"
    with pytest.raises(SystemExit) as ended:
        main(["sandbox", "up", "--dir", str(place), f"--price-speed={speed}"])
    assert ended.value.code == 2
    assert f"{speed!r} is not a speed from 0 to" in capsys.readouterr().err
    assert not place.exists()


def test_a_wrong_configuration_is_exit_2_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    body = (
        "from slurm_elastic.config import configfile; from pathlib import Path;"
        f" configfile.load(Path({str(path)!r})); return 0"
    )
    for content, said in (
        (
            b"cluster: 1\n",
            "x.yaml:1: cluster: found 1, expected a mapping with the keys name, uuid",
        ),
        (b"\xff", "x.yaml: found byte 0xff at offset 0, expected UTF-8 text"),
        (b"a: [", "x.yaml:1:5: not YAML: "),
    ):
        path.write_bytes(content)
        done = run_process(code=PROBE.format(body=body))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"slurm-elastic: {tmp_path}/")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    body = "[print('line', n) for n in range(200000)]; return 0"
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=patience(60)) == 141


def test_an_interrupt_is_exit_130_and_quiet() -> None:
    done = run_process(code=PROBE.format(body="raise KeyboardInterrupt"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


SHELL_PROBE = r"""
import pathlib, sys, types
from slurm_elastic.cli import main as frame
from slurm_elastic.cli.operate.console import plain
probe = types.ModuleType("slurm_elastic.cli.probe")
def run(args):
    with open(sys.argv[1], "w") as file:
        file.write("kept")
    print("r\u00e9sum\u00e9 \udcff")
    plain().print("r\u00e9sum\u00e9 " * 40, overflow="ellipsis", no_wrap=True)
    print("said", file=sys.stderr)
    return 0
def add(subparsers):
    subparsers.add_parser("probe").set_defaults(run=run)
probe.add = add
sys.modules["slurm_elastic.cli.probe"] = probe
frame.COMMANDS = {"probe": "for tests"}
sys.exit(frame.main(["probe"]))
"""


def in_shell(
    tmp_path: Path, redirected: str, **env: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """The probe below /bin/sh; also what it wrote to a file of its own."""
    script = tmp_path / "probe.py"
    script.write_text(SHELL_PROBE)
    root = str(Path(frame.__file__).parents[2])
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$1" "$2" "$3" {redirected}', "sh", sys.executable, str(script),
         str(tmp_path / "file")],
        capture_output=True, text=True, timeout=patience(60), check=False,
        env={**os.environ, "PYTHONPATH": root, "PYTHONIOENCODING": "", **env},
    )  # fmt: skip
    return done, (tmp_path / "file").read_text()


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_dev_null(tmp_path: Path, closed: str) -> None:
    done, kept = in_shell(tmp_path, closed)
    assert (done.returncode, kept) == (0, "kept")
    assert done.stderr == ("" if "2>&-" in closed else "said\n")
    assert (done.stdout == "") is (">&-" in closed.split())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("columns", ["20", "0", "80"])
def test_no_text_is_too_much_for_a_stream(tmp_path: Path, encoding: str, columns: str) -> None:
    done, _ = in_shell(tmp_path, "| cat -v", PYTHONIOENCODING=encoding, COLUMNS=columns)
    assert done.stderr == "said\n"
    first, second = done.stdout.splitlines()
    assert "\\udcff" in first
    assert second.startswith("r")
    assert ("\\xe9" in first) is (encoding == "ascii")


@pytest.mark.parametrize("main", ["daemon", "ckptman", "local_agent"])
def test_services_bear_closed_streams(main: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$1" -m "$2" --config "$3" >&- 2>&-', "sh", sys.executable,
         f"slurm_elastic.cli.services.{main}", str(tmp_path / "none.yaml")],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_reader_of_tables_that_goes_away_is_no_error_message(tmp_path: Path) -> None:
    script = SHELL_PROBE.replace("overflow=", "soft_wrap=True, overflow=").replace(
        "* 40", "* 99999"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "file")], stdout=writer,
        stderr=subprocess.PIPE, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
