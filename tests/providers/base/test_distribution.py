"""Python modules that only the distribution has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.providers.base.distribution import from_distribution


@pytest.mark.parametrize("place", ["lib/python3/dist-packages", "lib64/python{}/site-packages"])
def test_it_is_found_where_debian_and_fedora_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / place.format(f"{sys.version_info[0]}.{sys.version_info[1]}")
    folder.mkdir(parents=True)
    name = f"module_of_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text("here = True\n")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    before = [*sys.path]
    try:
        assert from_distribution(name, "install it").here
    finally:
        sys.modules.pop(name, None)
    assert sys.path == before


def test_one_that_is_nowhere_is_named_with_the_remedy() -> None:
    before = [*sys.path]
    with pytest.raises(ConfigError, match=r"Python module 'nowhere_x' is missing .*; install it"):
        from_distribution("nowhere_x", "install it")
    assert sys.path == before
