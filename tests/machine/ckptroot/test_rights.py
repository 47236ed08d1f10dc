"""A user's rights on files: for so long as we touch his, and on what root lets him run."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import rights
from slurm_elastic.machine.ckptroot.rights import as_user, let_run

from .helpers import ROOT, user_of

pytestmark = ROOT
USER, GROUP, OTHER = 2000, 2001, 2002


@pytest.fixture
def script() -> Iterator[Path]:
    """Below directories that everybody may pass."""
    with tempfile.TemporaryDirectory(prefix="se-rights-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        script = Path(place, "script")
        script.touch(mode=0o500)
        os.chown(script, 0, GROUP)
        yield script


def may(path: Path, uid: int, gid: int) -> str:
    with as_user(user_of(uid, gid)):
        ways = {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}
        return "".join(
            name for name, way in ways.items() if os.access(path, way, effective_ids=True)
        )


def test_one_user_may_read_and_run_it_and_nobody_else(script: Path) -> None:
    descriptor = os.open(script, os.O_RDONLY)
    try:
        if not let_run(descriptor, USER):
            pytest.skip("this file system has no ACLs")
    finally:
        os.close(descriptor)
    found = {
        uid: may(script, uid, gid) for uid, gid in ((USER, USER), (GROUP, GROUP), (OTHER, OTHER))
    }
    assert found == {USER: "rx", GROUP: "", OTHER: ""}
    assert script.stat().st_mode & 0o777 == 0o550, "nor does root write it by its mode"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.EIO])
def test_a_file_system_without_such_rights_is_told_from_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(rights.os, "setxattr", fails)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            let_run(0, USER)
    else:
        assert let_run(0, USER) is False


def acts_as_the_user() -> None:
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (USER, GROUP, [GROUP, OTHER])
    assert os.getuid() == 0, "our real user stays root"
    raise FileNotFoundError


def test_all_rights_come_back_also_after_a_failure() -> None:
    before = (os.getresuid(), os.getresgid(), os.getgroups())
    with pytest.raises(FileNotFoundError), as_user(user_of(USER, GROUP, OTHER)):
        acts_as_the_user()
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
