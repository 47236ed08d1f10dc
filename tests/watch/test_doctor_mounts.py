"""``doctor`` and the servers of ``join.mounts``: the finding for a server that answers, and for one
that does not.
"""

from __future__ import annotations

import socket

import pytest

from slurm_elastic.config import Config, configfile
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.watch.doctor import mounts
from slurm_elastic.watch.doctor.mounts import examine
from tests.config.test_mounts import HOME, NFS, site


def config(of_mounts: str = HOME) -> Config:
    return configfile.parse(site(of_mounts, NFS), "site.yaml")


def examined(error: OSError | None, of_mounts: str = HOME) -> Finding:
    def probe(server: str) -> None:
        assert server == "10.99.0.1"
        if error is not None:
            raise error

    (finding,) = examine(config(of_mounts), probe)
    return finding


def test_a_server_that_answers_is_all_right() -> None:
    finding = examined(None)
    assert finding.level is FindingLevel.OK
    assert finding.observed == "the server of 10.99.0.1:/home answers, for /home on aws"


def test_a_server_that_is_away_is_told_with_what_follows() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    finding = examined(refused)
    assert finding.level is FindingLevel.WRONG
    assert "refused" in finding.observed
    assert "machines of aws start no slurmd without /home" in finding.expected
    assert "start the NFS server" in finding.advice
    spare = "[{path: /home, from: 'head:/home', required: false}]"
    assert examined(refused, spare).level is FindingLevel.NOTE


def test_no_mounts_are_no_finding() -> None:
    assert list(examine(config("[]"))) == []


def test_the_question_is_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(mounts, "NFS_PORT", server.getsockname()[1])
        mounts.connect("127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        mounts.connect("127.0.0.1")
