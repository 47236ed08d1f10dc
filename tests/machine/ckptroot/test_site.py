"""Root's configuration: its defaults, and the bounds of its values."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import site as sites
from slurm_elastic.machine.ckptroot.site import Amount, HelperSite, RequestRefused

from .helpers import ROOT

pytestmark = ROOT
EXAMPLE = Path(__file__).parents[3] / "etc" / "ckpt-root.conf"


def test_the_defaults_are_those_of_the_example() -> None:
    said = {}
    for line in EXAMPLE.read_text().splitlines():
        name, equals, value = line.removeprefix("# ").partition(" = ")
        if line.startswith("# ") and equals:
            said[name] = value.split()[0]
    site = HelperSite(cluster="t", directory=Path("/"), key=b"", reader=(0, 0))
    texts = {name: str(getattr(site, name, "")).removesuffix(".0") for name in said}
    known = {"key": "/etc/slurm-elastic/ckpt.key", "slurm_user": "slurm", "slurm_conf": "none",
             "stage": "none"}  # fmt: skip
    assert {**texts, **known} == said
    shares = [getattr(site, name).of(200) for name in ("job_quota", "user_quota", "keep_free")]
    assert shares == [50, 100, 10]


def test_an_amount_is_bytes_or_a_share() -> None:
    assert (Amount("7", size=7).of(100), Amount("x").of(100)) == (7, 0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where all is root's."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o400)
    path = tmp_path / "ckpt-root.conf"
    (tmp_path / "shared").mkdir(mode=0o755)
    path.write_text(
        f"# ours\n  # hold = 9\n\ndirectory = {tmp_path}/shared\ncluster = t\nslurm_user = nobody\n"
        f"key = {tmp_path}/key\n"
    )
    return path


def test_it_is_read(config: Path, tmp_path: Path) -> None:
    site = sites.read(str(config))
    assert (site.jobs, site.hold) == (tmp_path / "shared" / "t", 600.0)
    assert site.reader[0] == pwd.getpwnam("nobody").pw_uid


@pytest.mark.parametrize("name", ["ckpt-root.conf", "key", "shared", "."])
def test_what_is_not_roots_alone_is_refused(config: Path, tmp_path: Path, name: str) -> None:
    place, mode = tmp_path / name, (tmp_path / name).stat().st_mode
    place.chmod(0o777)
    with pytest.raises(RequestRefused, match="may be written by others"):
        sites.read(str(config))
    place.chmod(mode & 0o7777)
    os.chown(place, 65534, 65534)
    with pytest.raises(RequestRefused, match="not to root"):
        sites.read(str(config))
    os.chown(place, 0, 0)
    if name != ".":
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RequestRefused, match="a link"):
            sites.read(str(config))


def test_a_key_has_at_least_32_bytes(config: Path, tmp_path: Path) -> None:
    assert sites.read(str(config)).key == b"k" * 32
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "key").write_bytes(b"k" * 31)
    with pytest.raises(RequestRefused, match="the key has fewer than 32 bytes"):
        sites.read(str(config))


@pytest.mark.parametrize("mode", [0o410, 0o404, 0o440, 0o401])
def test_a_key_is_for_root_alone(config: Path, tmp_path: Path, mode: int) -> None:
    (tmp_path / "key").chmod(mode)
    with pytest.raises(RequestRefused, match="key may be read by others"):
        sites.read(str(config))


GOOD = [("user_quota", "1.5T", "1.5T"), ("keep_free", "512 M", "512 M"), ("hold", "0.001", 0.001), ("hold", "999999999", 999999999.0), ("keep", "2.9", 2),
        ("user_quota", "100%", "100%"), ("job_quota", "1K", "1K"), ("scratch", "/x", Path("/x"))]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_values_up_to_their_bounds_are_taken(
    config: Path, name: str, text: str, value: object
) -> None:
    config.write_text(f"{config.read_text()}{name} = {text}\n")
    found = getattr(sites.read(str(config)), name)
    assert (str(found) if isinstance(value, str) else found) == value


BAD = [*(("keep_free", text, "keep_free is") for text in ("", "all", "-1G", "5", "nan%", "1e9G")),
       ("cluster", "../etc", "is not a name"), ("hold", "-1", "not above 0"), ("hold", "0", "hold is 0, not above 0"), ("poll", "1000000000", "not above 0"),
       ("hold", "soon", "hold is 'soon', not a number"), ("cluster", "a b", "'a b' is not a name"),
       ("keep_free", "100.1%", "expected at most 100%"), ("slurm_user", "no-such", "this host has no user"),
       ("tmp", "none", "tmp is 'none', expected own or node"),
       ("zeta = 1\nalpha", "1", "unknown key 'alpha'"), ("cluster", "", "no 'cluster'")]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "why"), BAD)
def test_others_are_refused_with_the_reason(config: Path, name: str, text: str, why: str) -> None:
    config.write_text(f"{config.read_text()}{name} = {text}\n")
    with pytest.raises(RequestRefused, match=f"{config}: .*{why}"):
        sites.read(str(config))


@pytest.mark.parametrize("name", ["a-b", "a_b", "A1"])
def test_a_cluster_is_named_as_slurm_does(config: Path, name: str) -> None:
    config.write_text(f"{config.read_text()}cluster = {name}\n")
    assert sites.read(str(config)).cluster == name


def test_no_more_than_a_mebibyte_is_read(config: Path) -> None:
    text = config.read_text()
    config.write_text(text + "#" * ((1 << 20) - len(text)))
    sites.read(str(config))
    config.write_text(text + "#" * ((1 << 20) + 1 - len(text)))
    with pytest.raises(RequestRefused, match="more than 1048576 bytes long"):
        sites.read(str(config))


@pytest.mark.parametrize(
    ("mode", "fine"),
    [(0o755, True), (0o775, False), (0o757, False), (0o1777, True), (0o1755, True)],
)
def test_a_place_that_others_write_is_roots_only_where_it_is_sticky(
    tmp_path: Path, mode: int, fine: bool
) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it").chmod(mode)
    if fine:
        sites.trust(tmp_path / "it", directory=True)
        return
    with pytest.raises(RequestRefused, match="it may be written by others"):
        sites.trust(tmp_path / "it", directory=True)


@pytest.mark.parametrize("path", ["a/b", "/a/../b"])
def test_only_whole_paths_are_trusted(path: str) -> None:
    with pytest.raises(RequestRefused, match="not an absolute path"):
        sites.trust(Path(path))


def test_what_is_no_file_or_no_directory_is_told(config: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match=f"^{tmp_path}: not a file$"):
        sites.trust(tmp_path)
    with pytest.raises(RequestRefused, match=f"^{config}: not a directory$"):
        sites.trust(config, directory=True)
    below = config / "file"
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    config.unlink()
    config.symlink_to(tmp_path / "real")
    with pytest.raises(RequestRefused, match=f"^{config}: a link$"):
        sites.trust(below)
