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
from slurm_elastic.model.image_store import ImageStore
from slurm_elastic.providers import open_images

_COLUMNS = ("NAME", "ID", "SLURM", "SYSTEM", "SIZE", "AGE", "POOLS")


def add_upload(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = actions.add_parser(
        "upload",
        help="put a built image into a configured cloud, tagged so that pools find it",
        description="Put an image that 'image build' made into a configured cloud, with tags that "
        "list its contents, so that pools find it by requirements. An image that the cloud has "
        "already is not uploaded again. Pools never use an interrupted upload. This needs rights "
        "that the services do not have: 'iam render KIND --for images' prints them.",
        epilog=examples(
            "slurm-elastic image upload stack compute.qcow2",
            "slurm-elastic image upload aws compute.raw --dry-run",
            "slurm-elastic image upload nebula a.qcow2 --path /srv/images/a.qcow2",
        ),
    )
    command.add_argument("cloud", metavar="CLOUD", help="the cloud's name in the configuration")
    command.add_argument(
        "file", type=Path, metavar="FILE", help="the image, with FILE.json beside it"
    )
    command.add_argument(
        "--name", metavar="NAME", help="its name in the cloud (default: from its contents)"
    )
    command.add_argument(
        "--path", metavar="PATH|URL",
        help="the file's path or URL for a cloud that reads the file itself (OpenNebula's front "
        "end; default: the same path as here)",
    )  # fmt: skip
    command.add_argument(
        "--again", action="store_true", help="first remove an interrupted upload of this image"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and change nothing"
    )
    command.set_defaults(run=run_upload)


def run_upload(args: argparse.Namespace) -> int:
    """Upload the image, unless the cloud has it already."""
    config = load(Path(args.config))
    store = _opened(config, _cloud(config, args.cloud))
    file = image_file(args.file, args.name, args.path)
    if label.read(args.file).secret:
        _say("this image contains the munge key: everyone who may read the image has the key")
    upload(store, file, _say, again=args.again, dry_run=args.dry_run)
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Print one row for each image whose tags list its contents, or that a pool starts from."""
    name = str(args.place)
    if "/" in name:
        raise ConfigError(f"{name}: found no directory, expected one or a cloud's name")
    config = load(Path(args.config))
    cloud = _cloud(config, name)
    store = _opened(config, cloud)
    images = store.images()
    starts = dict(_starts(config, cloud, store))
    shown = [image for image in images if image.tagged or image.id in starts.values()]
    if not shown:
        _say(f"{cloud.name} has no image with our tags")
        return 0
    for line in aligned(_rows(shown, starts, time.time())):
        _say(line)
    return 0


def _starts(config: Config, cloud: CloudSettings, store: ImageStore) -> Iterator[tuple[str, str]]:
    """Yield (pool, id of the image that its machines start from); print the error if none."""
    for pool in use_of(config, cloud, expand).pools:
        try:
            yield pool.name, store.start_of(pool)
        except (AuthError, TransientError):  # subclasses of ProviderError that end the command
            raise
        except ProviderError as error:
            _say(f"pool {pool.name}: {error.message}")


def _rows(
    images: Sequence[CloudImage], starts: Mapping[str, str], now: float
) -> Iterator[Sequence[str]]:
    several = any(i.place for i in images)
    yield (*(["HOST"] if several else []), *_COLUMNS)
    for i in sorted(images, key=lambda i: (i.place, -i.created)):
        pools = ", ".join(pool for pool, number in starts.items() if number == i.id) or "-"
        yield (
            *([i.place] if several else []), i.name, i.id, _slurm(i),
            f"{i.os} {i.version}".strip() or "-", _size(i.size), _age(i.created, now),
            i.unfinished or pools,
        )  # fmt: skip


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Rows as aligned lines of any width: an id that is cut is useless. Pure."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()


def _slurm(image: CloudImage) -> str:
    versions = sorted(w.removeprefix("slurm-") for w in image.software if w.startswith("slurm-"))
    return ", ".join(versions) or "-"


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
