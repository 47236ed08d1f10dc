"""Reads the status of other clusters, each by its own read door: by SSH on its head, or from a
file.

The user's own keys and rights on the other head decide what is read. The time of the last answer is
kept in the user's cache. If a head gives no answer, the table shows this time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from slurm_elastic.base import writing
from slurm_elastic.config.sections.other_clusters import OtherCluster
from slurm_elastic.slurm.client.command import CallTimeout, run
from slurm_elastic.watch.view.clusters import HeadAnswer, HeadStatus

MAX_BYTES = 64 << 20
"""Bytes of an answer. The status of ten thousand machines has about 8 MB."""
MAX_AT_ONCE = 16
SSH = ("ssh", "-T", "-o", "BatchMode=yes")
_VERSION = 1
_decoder = msgspec.json.Decoder(HeadStatus)


def read_heads(
    clusters: Sequence[OtherCluster], environment: Mapping[str, str], now: float
) -> list[HeadAnswer]:
    """The answers of these clusters, in this order; they are asked at the same time."""
    if not clusters:
        return []
    cache = _cache(environment)
    with ThreadPoolExecutor(min(len(clusters), MAX_AT_ONCE)) as pool:
        return list(pool.map(lambda cluster: _answer(cluster, environment, cache, now), clusters))


def _answer(
    cluster: OtherCluster, environment: Mapping[str, str], cache: Path, now: float
) -> HeadAnswer:
    is_file = cluster.file is not None
    seen = cache / cluster.name
    try:
        data = _file(cluster.file) if cluster.file is not None else _by_ssh(cluster, environment)
        status = _decoded(data)
    # RecursionError: an answer of many brackets, in a file that others may write.
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        return HeadAnswer(
            name=cluster.name, trouble=_words(error), seen_at=_seen_at(seen), is_file=is_file
        )
    # The other head's clock may be ahead of ours, and the last answer must not lie in the future.
    _remember(seen, min(status.at, now))
    return HeadAnswer(name=cluster.name, status=status, seen_at=status.at, is_file=is_file)


def _decoded(data: bytes) -> HeadStatus:
    status = _decoder.decode(data)
    if status.version != _VERSION:
        raise ValueError(f"its status has version {status.version}, expected {_VERSION}")
    return status


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, msgspec.MsgspecError | RecursionError):
        return f"its answer is no status of slurm-elastic: {error}"
    return str(error)


def _file(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    _require_bounded(len(data))
    return data


def _require_bounded(length: int) -> None:
    if length > MAX_BYTES:
        raise ValueError(f"its answer has more than {MAX_BYTES >> 20} MiB")


def _by_ssh(cluster: OtherCluster, environment: Mapping[str, str]) -> bytes:
    """The output of the command on the head. ValueError with ssh's or its last line if there is
    none.
    """
    answer = bytearray()

    def take(data: bytes) -> None:
        answer.extend(data)
        _require_bounded(len(answer))

    limit = max(int(cluster.timeout), 1)
    words = [*SSH, "-o", f"ConnectTimeout={limit}", "--", str(cluster.ssh), cluster.command]
    code, errors = run(words, environment, CallTimeout(cluster.timeout), take)
    # status ends with 1 if it could read neither Slurm nor its ledger, but it prints a document.
    if not answer.startswith(b"{"):
        lines = [line for line in errors.splitlines() if line.strip()]
        raise ValueError(lines[-1].strip() if lines else f"ssh ended with {code} and no output")
    return bytes(answer)


def _cache(environment: Mapping[str, str]) -> Path:
    home = environment.get("HOME") or "/nonexistent"
    return Path(environment.get("XDG_CACHE_HOME") or f"{home}/.cache") / "slurm-elastic/clusters"


def _seen_at(path: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text()[:40])
    return None


def _remember(path: Path, at: float) -> None:
    """Keep when the last answer was made. Without a home directory there is only no time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        writing.replace(path, f"{at:.0f}\n".encode(), 0o600)
