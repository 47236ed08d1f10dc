"""Man pages and completions are made from the commands, render, and complete in real shells."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from needs import missing, unless
from patience import patience

from slurm_elastic.cli import main
from slurm_elastic.cli.arguments import CONFIG_VARIABLE
from slurm_elastic.cli.setting_up import manual

ROOT = Path(__file__).parents[2]
PAGES = manual.pages()


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("share")
    manual.write(directory)
    return directory


def options(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found |= options(child)
        elif action.help != argparse.SUPPRESS:
            found |= set(action.option_strings)
    return found - {"-h", "--help"}


def test_every_command_and_service_has_a_page() -> None:
    names = {path.rpartition("/")[2] for path in PAGES}
    assert names == {
        "slurm-elastic.1", *(f"slurm-elastic-{name}.1" for name in main.COMMANDS),
        *(f"{name}.8" for name in manual.SERVICES),
    }  # fmt: skip


def test_a_page_has_every_option_of_its_command() -> None:
    (action,) = (
        a for a in main.whole_parser()._actions if isinstance(a, argparse._SubParsersAction)
    )
    for name, parser in action.choices.items():
        text = PAGES[f"man/man1/slurm-elastic-{name}.1"].replace("\\-", "-")
        assert {word for word in options(parser) if word not in text} == set(), name


@unless("man")
@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_renders_without_a_warning(share: Path, name: str) -> None:
    done = subprocess.run(
        ["man", "--warnings=w", "--encoding=UTF-8", "--local-file", str(share / name)],
        env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(".\b", "", done.stdout)
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "FILES", "SEE ALSO"):
        assert f"\n{heading}\n" in text


def completed(share: Path, *words: str, path: str = os.environ["PATH"]) -> set[str]:
    """By the function that bash calls."""
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; '
        "COMP_POINT=${#COMP_LINE}; function=$(complete -p slurm-elastic); "
        "function=${function##*-F }; ${function%% *}; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    file = share / manual.COMPLETIONS["bash"]
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", str(file), "slurm-elastic", *words],
        capture_output=True, text=True, timeout=60, check=True, env=os.environ | {"PATH": path},
    )  # fmt: skip
    return {word.strip() for word in done.stdout.splitlines()} - {""}


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("",), set(main.COMMANDS)),
        (("st",), {"status"}),
        (("cost", "--s"), {"--since", "--share-unused"}),
        (("cost", "--by", "p"), {"partition", "pool"}),
        (("cost", "--format", ""), {"table", "csv", "json", "focus"}),
        (("conf", ""), {"check", "install", "show"}),
    ],
)
def test_bash_completes(share: Path, words: tuple[str, ...], some: set[str]) -> None:
    assert some <= completed(share, *words)


CONF = (
    "cluster:\n  name: alps\nclouds:\n- provider: fake\n  name: aws\n  types:\n    name: x\n"
    "pools:\n- name: general\n  cloud: aws\n  nodes: pub[1-2]\n- name: gpu\n  cloud: aws\n"
    "policies:\n  account_budgets:\n    physics:\n      per_day: 5.0\n  poll_interval: 10s\n    x: y\n"
)
STATUS = (
    '{"instances":[{"id":"i-1","node":"old7","pool":""},{"id":"i-2","node":"pub1","pool":"gpu"}],'
    '"cool_downs":[{"key":"aws/c5/a/spot","code":"x"}]}'
)
SAID = """#!/bin/sh
case "$SLURM_ELASTIC_CONFIG $*" in
  "other.yaml conf show") echo "clouds:"; echo "- name: moon" ;;
  *"conf show") cat <<'END'
{CONF}END
  ;;
  *) echo '{STATUS}' ;;
esac
"""


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> str:
    """A PATH whose programs answer as a site's do."""
    said = {
        "slurm-elastic": SAID.replace("{CONF}", CONF).replace("{STATUS}", STATUS),
        "scontrol": '#!/bin/sh\n[ "$3" = "pub[1-2]" ] && printf "pub1\\npub2\\n" || echo "$3"\n',
        "squeue": "#!/bin/sh\nprintf '42\\n50\\n'\n",
    }
    for name, text in said.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("status", "--cloud", ""), {"aws"}),
        (("status", "--pool", "g"), {"general", "gpu"}),
        (("offers", "--job", ""), {"42", "50"}),
        (("explain", ""), {"pub1", "pub2", "42", "50", "general", "gpu", "aws"}),
        (("drain", "pu"), {"pub1", "pub2"}),
        (("limit", ""), {"cluster", "general", "gpu", "aws", "account:physics"}),
        (("limit", "ge"), {"general"}),
        (("clear", "aws"), {"aws", "aws/c5/a/spot"}),
        (("clear", "--gone", "i"), {"i-1"}),
        (("--config", "other.yaml", "pause", ""), {"moon"}),
        (("--config", "=", "other.yaml", "pause", ""), {"moon"}),
    ],
)
def test_names_of_the_site_are_completed(
    share: Path, site: str, words: tuple[str, ...], names: set[str]
) -> None:
    assert {one for one in completed(share, *words, path=site) if one[0] != "-"} == names


def test_a_slurmctld_that_hangs_holds_nobody_up(share: Path, site: str, tmp_path: Path) -> None:
    for name in ("squeue", "sinfo"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    began = time.monotonic()
    assert "pub1" in completed(share, "explain", "", path=site)
    assert time.monotonic() - began < patience(10)


ZSH = """
compadd() { shift; print -l -- "$@"; }
compdef() { }
source "$1"
_slurm_elastic_node_job_pool_cloud
BUFFER="slurm-elastic --config other.yaml explain "
_slurm_elastic_node_job_pool_cloud
"""
FISH = """source $argv[1]; complete -C 'slurm-elastic explain '
complete -C 'slurm-elastic --config other.yaml explain '"""


@pytest.mark.parametrize(("shell", "script"), [("zsh", ZSH), ("fish", FISH)])
def test_each_shell_has_the_names(share: Path, site: str, shell: str, script: str) -> None:
    if reason := missing(shell):
        pytest.skip(reason)
    file = str(share / manual.COMPLETIONS[shell])
    words = [shell, "-c", script, *(["zsh"] if shell == "zsh" else []), file]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": site}
    )
    found = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    assert {"pub1", "pub2", "42", "50", "general", "gpu", "aws", "moon"} <= found, done.stderr


def test_bash_completes_file_names(share: Path, tmp_path: Path) -> None:
    (tmp_path / "a-configuration.yaml").touch()
    found = completed(share, "--config", f"{tmp_path}/a-conf")
    assert found == {f"{tmp_path}/a-configuration.yaml"}
    assert completed(share, "price", f"{tmp_path}/a-conf") == found


def test_bash_completes_when_somebody_presses_tab(share: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "dumb", "PS1": "$ ", "INPUTRC": "/dev/null"}
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f"source {share / manual.COMPLETIONS['bash']}; echo rea''dy\n".encode())
        assert "ready" in _until(terminal, "ready\r\n")
        os.write(terminal, b"slurm-elastic expl\t")
        assert "slurm-elastic explain " in _until(terminal, "explain ")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _until(terminal: int, word: str) -> str:
    text, deadline = "", time.monotonic() + patience(30)
    while word not in text and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            text += os.read(terminal, 4096).decode()
    return text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_understands_its_file(share: Path, shell: str) -> None:
    if reason := missing(shell):
        pytest.skip(reason)
    file = share / manual.COMPLETIONS[shell]
    done = subprocess.run([shell, "-n", str(file)], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "share-unused" in file.read_text()


def test_they_do_not_depend_on_who_makes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, "/home/somebody/own.yaml")
    manual.write(tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and "somebody" in p.read_text()]


@pytest.mark.release
def test_they_are_made_where_no_cloud_has_its_sdk(tmp_path: Path) -> None:
    """As pip builds a wheel, with what pyproject.toml asks for and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {**project["optional-dependencies"], "dev": ["moto"]}  # what makes pages is in dev
    needs = {re.split(r"\[|>", need)[0] for of in extras.values() for need in of}
    brought = importlib.metadata.packages_distributions().items()
    absent = {name: None for name, of in brought if needs & set(of)}
    code = f"import sys; sys.modules.update({absent})\nfrom slurm_elastic.cli.setting_up import manual; manual.pages()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "boto3" in absent
    assert done.returncode == 0, done.stderr


@pytest.mark.release
@pytest.mark.e2e
def test_a_wheel_brings_them(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "setup.py"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "slurm_elastic", source / "slurm_elastic",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )  # fmt: skip
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    done = subprocess.run(
        [sys.executable, *command, str(source)], cwd=tmp_path, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    assert names >= {f"share/{name}" for name in (*PAGES, *manual.COMPLETIONS.values())}
