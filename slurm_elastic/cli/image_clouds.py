"""``slurm-elastic image upload`` and ``image list CLOUD``: golden images in configured clouds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_elastic.base.errors import AuthError, ConfigError, ProviderError, TransientError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import NO_UUID, Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.configfile import load
from slurm_elastic.config.grants import use_of
from slurm_elastic.image import label
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.boot_image import CloudImage
from slurm_elastic.model.protocols import ImageStore
from slurm_elastic.providers import open_images

_COLUMNS = ("NAME", "ID", "SLURM", "SYSTEM", "SIZE", "AGE", "POOLS")


def add_upload(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sent = actions.add_parser(
        "upload",
        help="put a built image into a configured cloud, tagged so that pools find it",
        description="Put an image that 'image build' made into a configured cloud, with tags that "
        "say what is in it, so that pools find it by requirements. An image that is there already "
        "is not uploaded again. No pool takes an upload that was broken off for an image. Needs "
        "rights that the services do not have: 'iam render KIND --for images' prints them.",
        epilog=examples(
            "slurm-elastic image upload stack compute.qcow2",
            "slurm-elastic image upload aws compute.raw --dry-run",
            "slurm-elastic image upload nebula a.qcow2 --path /srv/images/a.qcow2",
        ),
    )
    sent.add_argument("cloud", metavar="CLOUD", help="the cloud's name in the configuration")
    sent.add_argument("file", type=Path, metavar="FILE", help="the image, with FILE.json beside it")
    sent.add_argument("--name", metavar="NAME", help="its name there (default: by what is in it)")
    sent.add_argument(
        "--path", metavar="PATH|URL",
        help="how the cloud itself finds the file, where the cloud reads it (OpenNebula's front "
        "end; default: by the same path as here)",
    )  # fmt: skip
    sent.add_argument(
        "--again", action="store_true", help="remove first what an upload of it has left half done"
    )
    sent.add_argument(
        "--dry-run", action="store_true", help="look what is there, say what would be done, stop"
    )
    sent.set_defaults(run=run_upload)


def run_upload(args: argparse.Namespace) -> int:
    """Put it there."""
    config = load(Path(args.config))
    store = _opened(config, _cloud(config, args.cloud))
    file = image_file(args.file, args.name, args.path)
    if label.read(args.file).secret:
        _say("the munge key is in it: whoever may read the image there has the key")
    upload(store, file, _say, again=args.again, dry_run=args.dry_run)
    return 0


def run_list(args: argparse.Namespace) -> int:
    """One row for each image whose tags say what is in it."""
    name = str(args.place)
    if "/" in name:
        raise ConfigError(f"{name}: found no directory, expected one or a cloud's name")
    config = load(Path(args.config))
    cloud = _cloud(config, name)
    store = _opened(config, cloud)
    images = store.images()
    starts = dict(_starts(config, cloud, store))
    shown = [one for one in images if one.tagged or one.id in starts.values()]
    if not shown:
        _say(f"{cloud.name} has no image whose tags say what is in it")
        return 0
    for line in aligned(_rows(shown, starts, time.time())):
        _say(line)
    return 0


def _starts(config: Config, cloud: CloudSettings, store: ImageStore) -> Iterator[tuple[str, str]]:
    """By pool, the id of the image that its machines start from; where there is none it is told."""
    for pool in use_of(config, cloud, expand).pools:
        try:
            yield pool.name, store.start_of(pool)
        except (AuthError, TransientError):
            raise
        except ProviderError as error:
            _say(f"pool {pool.name}: {error.message}")


def _rows(
    images: Sequence[CloudImage], starts: Mapping[str, str], now: float
) -> Iterator[Sequence[str]]:
    several = any(one.place for one in images)
    yield (*(["HOST"] if several else []), *_COLUMNS)
    for one in sorted(images, key=lambda one: (one.place, -one.created)):
        pools = ", ".join(pool for pool, number in starts.items() if number == one.id) or "-"
        yield (
            *([one.place] if several else []), one.name, one.id, _slurm(one),
            f"{one.os} {one.version}".strip() or "-", _size(one.size), _age(one.created, now),
            one.unfinished or pools,
        )  # fmt: skip


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Rows as lines, however wide the terminal is: an id that is cut is none. Pure."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()


def _slurm(one: CloudImage) -> str:
    words = sorted(w.removeprefix("slurm-") for w in one.software if w.startswith("slurm-"))
    return ", ".join(words) or "-"


def _size(size: int | None) -> str:
    return "-" if size is None else f"{max(size, 1 << 20) >> 20} MiB"


def _age(created: float, now: float) -> str:
    return f"{max(now - created, 0.0) / 86400:.0f} d" if created else "-"


def _cloud(config: Config, name: str) -> CloudSettings:
    for cloud in config.clouds:
        if cloud.name == name:
            return cloud
    names = ", ".join(cloud.name for cloud in config.clouds)
    raise ConfigError(f"found {name!r}, expected a configured cloud: {names or '(none)'}")


def _opened(config: Config, cloud: CloudSettings) -> ImageStore:
    if config.cluster.uuid is None:
        raise ConfigError(NO_UUID)
    return open_images(cloud, config.cluster)


def _say(text: str) -> None:
    print(visible(text), flush=True)
