"""The disk that tells a machine about its launch if there is no metadata service (cloud-init's
documentation: datasource "NoCloud", a labelled file system).
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pycdlib

from slurm_elastic.providers.base.user_data import multipart


def seed(instance: str, node: str, parts: Sequence[str]) -> bytes:
    """The seed disk of a machine: an ISO 9660 image with the label ``cidata``, which has the
    machine's identity, and user data made of ``parts``.

    The same parts give the same size but not the same bytes, because ISO 9660 contains dates.
    """
    files = {
        "meta-data": f"instance-id: {instance}\nlocal-hostname: {node}\n",
        "user-data": multipart(parts),
    }
    image, out = pycdlib.PyCdlib(), io.BytesIO()
    # cloud-init needs the exact lower-case names, which plain ISO 9660 cannot hold. Rock Ridge and
    # Joliet both carry them, so any kernel can read them.
    image.new(joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate(files.items()):
        data = text.encode()
        image.add_fp(
            io.BytesIO(data), len(data), f"/F{number}.;1", rr_name=name, joliet_path=f"/{name}"
        )
    image.write_fp(out)
    image.close()
    return out.getvalue()
