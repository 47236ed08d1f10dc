"""The key ``users.page_proxy``: nobody becomes root by it, and no header is a part of another."""

from __future__ import annotations

from pathlib import Path

import pytest
from status_cases import config_file

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.configfile import load
from slurm_elastic.config.sections.access import PageProxy


def written(tmp_path: Path, proxy: str) -> Path:
    path = config_file(tmp_path)
    path.write_text(f"{path.read_text()}users:\n  page_proxy: {proxy}\n")
    return path


def test_a_web_server_and_its_header(tmp_path: Path) -> None:
    assert load(config_file(tmp_path)).users.page_proxy is None
    config = load(written(tmp_path, "{user: www-data, header: X-Remote-User}"))
    assert config.users.page_proxy == PageProxy(user="www-data", header="X-Remote-User")


@pytest.mark.parametrize(
    ("proxy", "told"),
    [
        ("{user: root, header: X-Remote-User}", "neither root nor slurm"),
        ("{user: slurm, header: X-Remote-User}", "neither root nor slurm"),
        ("{user: 'a b', header: X-Remote-User}", "the web server's Unix user"),
        ("{user: www-data, header: 'X-Remote-User:'}", "a header such as X-Remote-User"),
        ("{user: www-data, header: ''}", "text on one line, not empty"),
        ("{user: www-data}", "header"),
        ("{user: www-data, header: X-User, realm: x}", "realm"),
    ],
)
def test_what_trusts_too_much_is_refused(tmp_path: Path, proxy: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(written(tmp_path, proxy))
