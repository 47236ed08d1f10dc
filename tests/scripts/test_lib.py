"""The set-up that all scripts share: service starts denied and allowed again, who can read what."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "scripts" / "lib.sh"


def bash(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f". {LIB}\n{script}", "scripts/probe", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


def deny(policy: Path, then: str = "restore_policy") -> None:
    done = bash(f"POLICY=$1; deny_services; {then}", policy)
    assert done.returncode == 0, done.stderr


def test_service_starts_are_denied_for_the_time_being(policy):
    deny(policy, then=":")
    assert subprocess.run([policy], check=False).returncode == 101


def test_without_a_policy_before_there_is_none_after(policy):
    deny(policy)
    assert list(policy.parent.iterdir()) == []


def test_a_policy_of_the_site_comes_back_as_it_was(policy):
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o700)
    before = policy.stat()
    deny(policy)
    after = policy.stat()
    assert (after.st_ino, stat.S_IMODE(after.st_mode)) == (before.st_ino, 0o700)
    assert list(policy.parent.iterdir()) == [policy]


def test_a_link_comes_back_as_a_link(policy):
    policy.symlink_to("/nonexistent/alternatives")
    deny(policy)
    assert os.readlink(policy) == "/nonexistent/alternatives"


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 104\n"])
def test_what_a_killed_run_left_is_put_right_by_the_next(policy, text):
    if text:
        policy.write_text(text)
    deny(policy, then=":")
    assert bash("POLICY=$1; restore_policy", policy).returncode == 0
    assert (policy.read_text() if policy.exists() else None) == text


def test_a_policy_that_is_not_ours_is_left_alone(policy):
    policy.write_text("#!/bin/sh\nexit 0\n")
    assert bash("POLICY=$1; restore_policy", policy).returncode == 0
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    top = Path("/tmp") / f"slurm-elastic-lib-{os.getpid()}"
    package = top / "clone" / "slurm_elastic"
    package.mkdir(parents=True)
    (package / "model").mkdir()
    (package / "model" / "cluster.py").write_text("")
    for path in (top, top / "clone", package):
        path.chmod(0o755)
    (package / "model").chmod(0o755)
    (package / "model" / "cluster.py").chmod(0o644)
    yield top / "clone"
    subprocess.run(["rm", "-rf", top], check=True)


def is_open(clone: Path) -> bool:
    return bash("REPO=$1; open_to_all", clone).returncode == 0


def test_a_clone_that_everyone_may_enter_is_used_as_it_is(clone):
    assert is_open(clone)


@pytest.mark.parametrize(
    ("path", "mode"), [("..", 0o700), (".", 0o700), ("slurm_elastic/model/cluster.py", 0o600)]
)
def test_a_clone_that_user_slurm_cannot_read_is_found_out(clone, path, mode):
    (clone / path).chmod(mode)
    assert not is_open(clone)


def test_missing_packages_are_told_from_installed_ones():
    done = bash("not_installed bash no-such-package-here")
    assert done.stdout.split() == ["no-such-package-here"]


def test_a_failing_command_shows_the_end_of_what_it_said(tmp_path):
    done = bash("CACHE=$1; quietly sh -c 'echo so it was; exit 3' || die 'it failed'", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "so it was\nprobe: it failed\n"


def test_a_command_that_works_says_nothing(tmp_path):
    done = bash("CACHE=$1; quietly sh -c 'echo so it was'", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("args", ["", "sid", "trixie --at", "trixie --only nothing", "--once"])
def test_fresh_tells_its_use(args):
    done = subprocess.run(
        [LIB.parent / "fresh", *args.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fresh: usage: scripts/fresh bookworm|trixie")


STAMPS = """
VENV=$1 PYTHON=/usr/bin/python3; mkdir -p "$VENV/bin"; ln -s /usr/bin/python3 "$VENV/bin/python"
printf '#!/bin/sh\\necho "$@" >>%s\\n' "$2" >"$VENV/bin/pip"; chmod +x "$VENV/bin/pip"; CACHE=$VENV
for made in $3; do install_python "${made%=*}" "${made#*=}" ".[${made%=*}]"; done
"""


@pytest.mark.parametrize(
    ("asked", "installed"),
    [
        ("sandbox=1 sandbox=1", ["sandbox"]),
        ("sandbox=1 dev=1 sandbox=1 dev=1", ["sandbox", "dev"]),
        ("dev=1 sandbox=1", ["dev"]),  # dev has all
        ("dev=1 sandbox=2 dev=2", ["dev", "sandbox", "dev"]),  # pyproject.toml has changed
    ],
)
def test_an_environment_with_other_extras_is_completed(tmp_path, asked, installed):
    done = bash(STAMPS, tmp_path / "venv", tmp_path / "calls", asked)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert [line.split(".[")[1].rstrip("]") for line in calls.splitlines()] == installed


@pytest.fixture
def wrapper(clone: Path) -> Path:
    scripts = clone / "scripts"
    scripts.mkdir(mode=0o755)
    (scripts / "lib.sh").write_text(LIB.read_text())
    there = clone / "slurm-elastic"
    there.write_text((LIB.parent.parent / "slurm-elastic").read_text())
    there.chmod(0o755)
    (clone / "pyproject.toml").write_text("")
    return there


def call(program: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, cwd="/",
        env={**os.environ, **env},
    )  # fmt: skip


def test_the_clones_program_says_what_makes_its_environment(wrapper):
    done = call(wrapper, "status")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{wrapper.parent}/scripts/quickstart" in done.stderr


def test_the_clones_program_runs_by_a_link_from_anywhere_and_keeps_the_path(wrapper, tmp_path):
    program = wrapper.parent / ".venv" / "bin" / "slurm-elastic"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$PATH $(umask) $@"\n')
    program.chmod(0o755)
    link = tmp_path / "se"
    link.symlink_to(wrapper)
    done = call(link, "explain", "a b", PATH="/bin:/usr/bin")
    assert done.stdout.split()[0] == "/bin:/usr/bin"
    assert done.stdout.endswith(" explain a b\n")


def test_in_a_closed_clone_the_program_is_in_the_cache(wrapper):
    wrapper.parent.chmod(0o700)
    done = bash(". $1/scripts/lib.sh; CACHE=/nowhere; find_venv; echo $VENV", wrapper.parent)
    assert done.stdout.startswith("/nowhere/venv-")


def test_without_apt_get_it_says_what_to_install_by_hand():
    done = bash('command() { [ "$2" != apt-get ]; }; install_packages bash no-such-package-here')
    assert done.returncode == 1
    assert done.stderr.startswith("probe: there is no apt-get here; install by hand")
    assert done.stderr.rstrip().endswith(": no-such-package-here")


def test_nothing_is_asked_of_apt_where_all_programs_are():
    done = bash("""
    has_slurm() { :; }; make_venv() { echo "venv $1"; }; install_packages() { exit 9; }
    CACHE=$(mktemp -d); set_up sandbox; rm -r "$CACHE"
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "==> Slurm, munge, Lua and Python: all there",
        "venv sandbox",
    ]


@pytest.mark.parametrize(
    ("cache", "code"), [("/tmp/.cache", 1), ("/run/user/7", 1), ("/tmp/../srv/cache", 0)]
)
def test_rootless_refuses_an_environment_that_its_namespaces_hide(tmp_path, cache, code):
    done = bash(
        "has_programs() { :; }; find_python() { :; }; install_copy() { :; }\n"
        "hash_of() { :; }; stamped() { false; }; CACHE=$1 REPO=/proc/none WHERE=$2\n"
        "cached_venv() { echo $WHERE/venv; }; set_up_rootless sandbox",
        tmp_path, cache,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("set XDG_CACHE_HOME" in done.stderr) == bool(code)
    assert done.stderr.count("\n") == code
