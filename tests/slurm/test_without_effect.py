"""`conf check` names settings that are valid and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config.sections.copying import CopySettings, Data
from slurm_elastic.config.sections.joining import Firewall, Mount, Network, NetworkKind, Opener
from slurm_elastic.slurm.conf.checks.without_effect import notices
from tests.controller.world import make_config

NOTHING_COPIED = "because no cloud has `data: copy`, so no files are copied"
ENDPOINT = "because machines call the port of join.network.endpoint"
CALLED = "only with `opened_by: head` does the head call this port"


def test_copy_settings_without_a_cloud_that_copies(tmp_path: Path) -> None:
    settings = CopySettings(size_limit=20480, exclude=("*.o",))
    plain = make_config(tmp_path, copy=settings)
    assert list(notices(plain)) == ["copy.size_limit, copy.exclude: no effect, " + NOTHING_COPIED]
    copying = replace(plain, clouds=(plain.clouds[0], replace(plain.clouds[1], data=Data.COPY)))
    assert list(notices(copying)) == []
    assert list(notices(replace(plain, copy=CopySettings()))) == []


def test_copies_of_a_cloud_that_mounts_a_directory(tmp_path: Path) -> None:
    plain = make_config(tmp_path)
    copying = replace(plain, clouds=(plain.clouds[0], replace(plain.clouds[1], data=Data.COPY)))
    names = [cloud.name for cloud in plain.clouds]
    for clouds, is_said in (((), True), ((names[1],), True), ((names[0],), False)):
        mount = Mount(path="/shared", source="head:/shared", clouds=clouds)
        config = replace(copying, join=replace(plain.join, mounts=(mount,)))
        sentence = (
            f"data: copy of {names[1]}: no effect below /shared, because join.mounts has it on the"
            " machines: jobs there work on the files themselves"
        )
        assert list(notices(config)) == [sentence] * is_said
        assert list(notices(replace(config, clouds=plain.clouds))) == []


@pytest.mark.parametrize(
    ("network", "sentences"),
    [
        (Network(endpoint="vpn.example.org:51820"), []),
        (Network(opened_by=Opener.HEAD, udp_port=4500), []),
        (
            Network(endpoint="vpn.example.org:51820", udp_port=4500),
            [
                f"join.network.udp_port: no effect, {ENDPOINT}; {CALLED}",
            ],
        ),
        (
            Network(
                kind=NetworkKind.NONE, firewall=Firewall.NFTABLES, opened_by=Opener.HEAD,
                udp_port=4500,
            ),
            [
                "join.network.opened_by: no effect, because `kind: none` has no tunnel",
                f"join.network.udp_port: no effect, because `kind: none` has no tunnel; {CALLED}",
            ],
        ),
    ],
)  # fmt: skip
def test_keys_of_the_tunnel(tmp_path: Path, network: Network, sentences: list[str]) -> None:
    plain = make_config(tmp_path)
    config = replace(plain, join=replace(plain.join, network=network))
    assert list(notices(config)) == sentences
