"""The disk that tells a machine of its launch, as cloud-init's datasource NoCloud reads it."""

from __future__ import annotations

import io

import pytest
from needs import not_installed

from slurm_elastic.providers.base.user_data import multipart

pycdlib = pytest.importorskip("pycdlib", reason=not_installed("pycdlib"))

PARTS = ("#!/bin/sh\necho one\n", "#cloud-config\na: b\n")


def test_a_machine_reads_who_it_is_and_its_parts_by_either_kind_of_name() -> None:
    from slurm_elastic.providers.base.nocloud import seed

    disk = seed("i-1", "n1", PARTS)
    image = pycdlib.PyCdlib()
    image.open_fp(io.BytesIO(disk))
    assert image.pvd.volume_identifier.decode().strip() == "cidata"
    assert len(disk) % 2048 == 0
    wanted = {
        "/meta-data": "instance-id: i-1\nlocal-hostname: n1\n", "/user-data": multipart(PARTS),
    }  # fmt: skip
    for kind in ("rr_path", "joliet_path"):
        for path, text in wanted.items():
            out = io.BytesIO()
            image.get_file_from_iso_fp(out, **{kind: path})
            assert out.getvalue().decode() == text
    image.close()


def test_the_same_parts_take_the_same_room() -> None:
    from slurm_elastic.providers.base.nocloud import seed

    assert len(seed("i-1", "n1", PARTS)) == len(seed("i-1", "n1", PARTS))
