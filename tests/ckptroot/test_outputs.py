"""A job's output over its runs: neither lost nor doubled, and with the user's rights only."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.ckptroot import outputs
from slurm_elastic.ckptroot.caller import Caller
from slurm_elastic.ckptroot.site import Refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the root part is root's")
USER = 65534
CALLER = Caller(job=7, uid=USER, gid=USER, user="nobody", groups=(USER,), environment={})


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="se-outputs-", dir="/tmp"))
    path.chmod(0o755)
    (path / "keep").mkdir(mode=0o700)
    (path / "home").mkdir()
    os.chown(path / "home", USER, USER)
    yield path
    shutil.rmtree(path)


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    os.chown(path, USER, USER)
    return str(path)


def test_a_truncated_output_comes_back(place: Path) -> None:
    out = write(place / "home" / "out", b"one\ntwo\nthree\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER)
    write(place / "home" / "out", b"")
    outputs.give_back(place / "keep", [out], {out: 8}, CALLER)
    assert Path(out).read_bytes() == b"one\ntwo\n"


def test_only_what_is_new_is_copied(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER)
    write(place / "home" / "out", b"XXX\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER)
    assert (place / "keep" / "0").read_bytes() == b"one\ntwo\n"


def test_an_older_image_takes_less(place: Path) -> None:
    out = write(place / "home" / "out", b"one\ntwo\n")
    outputs.keep(place / "keep", [out], {out: 8}, CALLER)
    write(place / "home" / "out", b"")
    outputs.give_back(place / "keep", [out], {out: 4}, CALLER)
    assert Path(out).read_bytes() == b"one\n"
    outputs.keep(place / "keep", [out], {out: 4}, CALLER)
    assert (place / "keep" / "0").read_bytes() == b"one\n"


def test_what_was_written_after_the_image_is_cut(place: Path) -> None:
    """As with JobFileAppend or --open-mode=append, and for files of the job's own."""
    out = write(place / "home" / "out", b"one\ntwo\nthree\n")
    data = write(place / "home" / "data", b"123456")
    outputs.keep(place / "keep", [out], {out: 8, data: 3}, CALLER)
    outputs.give_back(place / "keep", [out], {out: 8, data: 3}, CALLER)
    assert Path(out).read_bytes() == b"one\ntwo\n"
    assert Path(data).read_bytes() == b"123"


def test_an_output_under_the_old_nodes_name_is_made_anew(place: Path) -> None:
    out = write(place / "home" / "out-n1", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER)
    Path(out).unlink()
    outputs.give_back(place / "keep", [out], {out: 4}, CALLER)
    assert Path(out).read_bytes() == b"one\n"
    assert Path(out).stat().st_uid == USER


@pytest.mark.parametrize("kind", ["link", "pipe", "root's"])
def test_nothing_but_the_users_own_file_is_touched(place: Path, kind: str) -> None:
    secret = place / "secret"
    secret.write_bytes(b"root's own")
    secret.chmod(0o600)
    out = place / "home" / "out"
    match kind:
        case "link":
            out.symlink_to(secret)
        case "pipe":
            os.mkfifo(out)
        case _:
            out = secret
    with pytest.raises(Refused):
        outputs.keep(place / "keep", [str(out)], {str(out): 4}, CALLER)
    with pytest.raises(Refused):
        outputs.give_back(place / "keep", [str(out)], {str(out): 4}, CALLER)
    outputs.clear([str(out)], CALLER)
    assert secret.read_bytes() == b"root's own"


def test_a_copy_that_is_too_short_is_refused(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    outputs.keep(place / "keep", [out], {out: 4}, CALLER)
    write(place / "home" / "out", b"")
    with pytest.raises(Refused, match="byte 4 of 9"):
        outputs.give_back(place / "keep", [out], {out: 9}, CALLER)


def test_our_rights_come_back(place: Path) -> None:
    out = write(place / "home" / "out", b"one\n")
    before = (os.geteuid(), os.getegid(), os.getgroups())
    outputs.sizes([out, "/nowhere/at/all"], CALLER)
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
