"""A machine learns its node's name from its user data and the metadata service."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patience as stretched

from slurm_elastic.image.imds import MetadataAnswers, serving
from slurm_elastic.providers.aws import boothook
from slurm_elastic.providers.aws.requests import USER_DATA
from slurm_elastic.providers.base.tags import in_order
from slurm_elastic.providers.base.user_data import Form, compose, program
from slurm_elastic.providers.openstack.requests import USER_DATA as OPENSTACK


@pytest.fixture
def metadata() -> Iterator[str]:
    with serving() as url:
        yield url


def boot(
    facts: dict[str, str], metadata: str, place: Path, patience: float = 60, ipv4: str = ""
) -> int:
    """Run the program as the machine does, but for where it asks and writes, and how it ends."""
    text = program(facts, USER_DATA).replace(boothook.IMDS[-1], metadata)
    text = text.replace(boothook.IMDS[0], ipv4 or metadata)
    text = text.replace(boothook.PLACE, str(place))
    text = text.replace("GIVE_UP_S = 900.0", f"GIVE_UP_S = {patience}")
    text = text.replace("RETRY_S = 2.0", "RETRY_S = 0.05")
    text = text.replace('["shutdown", "-h", "now"]', f"['touch', '{place}/ended']")
    return subprocess.run([sys.executable, "-I", "-c", text], timeout=stretched(120)).returncode


def test_a_machine_takes_the_place_of_its_launch_index(metadata: str, tmp_path: Path) -> None:
    MetadataAnswers.answers = {"ami-launch-index": "3"}
    facts = {"cluster": "site", "pool": "it's a pool", "nodes": "pub[08-10],gpu[2,1],head"}
    assert boot(facts, metadata, tmp_path / "run") == 0
    assert (tmp_path / "run" / "node").read_text() == "gpu2\n"
    script = f". {tmp_path}/run/launch; echo $cluster/$pool/$nodes/$node"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "site/it's a pool/pub[08-10],gpu[2,1],head/gpu2\n"


@pytest.mark.parametrize("form", [USER_DATA, OPENSTACK], ids=["aws", "openstack"])
def test_only_root_may_read_the_secret_of_the_launch(form: Form, tmp_path: Path) -> None:
    text = program({"nodes": "a1", "generation": "g7", "enrol": "secret"}, form)
    text = text.replace(boothook.PLACE, str(tmp_path))
    subprocess.run([sys.executable, "-I", "-c", text], check=True, timeout=stretched(60))
    assert "enrol=secret\n" in (tmp_path / "launch").read_text()
    assert stat.S_IMODE((tmp_path / "launch").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "node").stat().st_mode) == 0o644


def test_a_list_too_long_for_user_data_comes_from_the_tags(metadata: str, tmp_path: Path) -> None:
    MetadataAnswers.answers = {
        "ami-launch-index": "2",
        "tags/instance/slurm-elastic:nodes": "a[1-2]",
        "tags/instance/slurm-elastic:nodes-1": "a7",
    }
    boot({"cluster": "site"}, metadata, tmp_path)
    assert (tmp_path / "node").read_text() == "a7\n"


def test_in_a_subnet_without_ipv4_it_asks_by_ipv6(metadata: str, tmp_path: Path) -> None:
    MetadataAnswers.answers = {"ami-launch-index": "1"}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{nobody.getsockname()[1]}/latest/"
        assert boot({"nodes": "a[1-2]"}, metadata, tmp_path, ipv4=silent) == 0
    assert (tmp_path / "node").read_text() == "a2\n"


FLEET = {
    "tags/instance/slurm-elastic:nodes": "a[1-120]",
    "tags/instance/slurm-elastic:generation": "g7",
    "tags/instance/slurm-elastic:places": "3",
    "tags/instance/slurm-elastic:place-0": "0",
    "tags/instance/slurm-elastic:place-1": "9",
    "ami-launch-index": "0",
}


def test_a_machine_of_a_fleet_waits_until_its_tags_tell_its_place(
    metadata: str, tmp_path: Path
) -> None:
    MetadataAnswers.answers = dict(FLEET)
    later = threading.Timer(
        1.0, lambda: MetadataAnswers.answers.update({"tags/instance/slurm-elastic:place-2": "8"})
    )
    later.start()
    assert boot({"cluster": "site", "nodes": ""}, metadata, tmp_path) == 0
    later.join()
    assert (tmp_path / "node").read_text() == "a99\n"
    assert "generation=g7\n" in (tmp_path / "launch").read_text()


def test_a_machine_that_nobody_gives_a_place_ends_itself(metadata: str, tmp_path: Path) -> None:
    MetadataAnswers.answers = dict(FLEET)
    assert boot({"cluster": "site"}, metadata, tmp_path, patience=0.1) != 0
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "node").exists()


def test_the_list_gives_way_to_the_sites_part() -> None:
    site = "#!/bin/sh\n" + "x" * 10
    assert b"'nodes': 'p[1-9]'" in compose({}, "p[1-9]", (site,), USER_DATA)
    noise = "".join(chr(33 + n * n % 89) for n in range(12 * USER_DATA.max_bytes))
    crowded = compose({}, noise, (site,), USER_DATA)
    assert len(crowded) <= USER_DATA.max_bytes


def test_the_same_launch_makes_the_same_bytes() -> None:
    site = "#cloud-config\n" + "a: b\n" * 5000
    assert compose({"a": "b"}, "p1", (site,), USER_DATA) == compose(
        {"a": "b"}, "p1", (site,), USER_DATA
    )


@given(
    st.lists(
        st.from_regex(r"[a-z]{1,3}(-[a-z0-9]{1,3})?[0-9]{0,4}", fullmatch=True),
        min_size=1, max_size=60, unique=True,
    )
)  # fmt: skip
def test_it_reads_every_list_that_the_provider_writes(nodes: list[str]) -> None:
    if not all(n.isascii() for n in nodes):
        return
    assert boothook.expand(",".join(in_order(nodes, 256))) == nodes


@pytest.fixture
def busy(metadata: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A service that refuses the first request for each path."""
    seen: set[str] = set()

    def busy_at_first(answer: Callable[[MetadataAnswers], None]) -> Callable[..., None]:
        def reply(request: MetadataAnswers) -> None:
            is_first = request.path not in seen
            seen.add(request.path)
            request._say(503, b"") if is_first else answer(request)

        return reply

    for name in ("do_GET", "do_PUT"):
        monkeypatch.setattr(MetadataAnswers, name, busy_at_first(getattr(MetadataAnswers, name)))
    return metadata


@pytest.mark.parametrize(
    ("answers", "node"),
    [
        ({"ami-launch-index": "3"}, "a4\n"),
        (FLEET | {"tags/instance/slurm-elastic:place-2": "8"}, "a99\n"),
    ],
)
def test_a_busy_metadata_service_gives_no_machine_the_place_of_another(
    answers: dict[str, str], node: str, busy: str, tmp_path: Path
) -> None:
    MetadataAnswers.answers = dict(answers)
    assert boot({"generation": "g7", "nodes": "a[1-120]"}, busy, tmp_path) == 0
    assert (tmp_path / "node").read_text() == node


def test_a_machine_that_gets_no_answer_ends_and_takes_no_place(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{nobody.getsockname()[1]}/latest/"
        assert boot({"nodes": "a[1-2]"}, silent, tmp_path, patience=0.1) != 0
        assert (tmp_path / "ended").exists()
        assert not (tmp_path / "node").exists()
        assert boot({"generation": "g7", "nodes": "a7"}, silent, tmp_path, patience=0.1) == 0
    assert (tmp_path / "node").read_text() == "a7\n"


def test_an_answer_that_is_no_http_is_no_answer(metadata: str, tmp_path: Path) -> None:
    """An answer that is cut off, or is of another service at the address, is retried."""
    MetadataAnswers.answers = {"ami-launch-index": "1"}
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_no_http() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(b"busy\r\n\r\n")

        thread = threading.Thread(target=answer_no_http, daemon=True)
        thread.start()
        odd = f"http://127.0.0.1:{server.getsockname()[1]}/latest/"
        assert boot({"generation": "g7", "nodes": "a[1-2]"}, metadata, tmp_path, ipv4=odd) == 0
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (tmp_path / "node").read_text() == "a2\n"
