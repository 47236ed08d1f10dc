"""Method ``blcr``: Berkeley Lab Checkpoint/Restart, for sites that still run it.

No current kernel does, so we test it with programs that stand in for cr_run(1), cr_checkpoint(1)
and cr_restart(1), over a real sshd. The launcher starts the job's script by cr_run or, if it finds
an image, by cr_restart. Here the head asks the job's node over SSH, as root; but cr_checkpoint
itself, and what it restores, run as the job's user.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slurm_elastic.base import writing
from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.checkpointers.ssh import Shells
from slurm_elastic.config.checkpoint import BlcrSettings
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase
from slurm_elastic.state import statedir

log = logging.getLogger(__name__)

SIGNAL_PATIENCE = 60.0
"""Seconds that ``release`` and ``remove`` may take."""
MOST_HOSTS = 3
"""Nodes that are asked to delete one job's images before that is left for another time."""

# As root: $1 is the job's directory, $2 its owner, then comes the command. In a directory like /tmp
# a user could take the names of others' jobs, so root makes the directory if it can.
_OWN = r"""
d=$1 owner=$2; shift 2
mkdir -m 755 "${d%/*}" 2>/dev/null
mkdir -m 711 "$d" 2>/dev/null && { chown -h "$owner" "$d" 2>/dev/null || rmdir "$d"; }
exec "$@"
"""

# $1 directory, $2 number, $3 stop or go, $4 pid, $5 seconds, $6 directory of programs, $7 keep
_SAVE = r"""
umask 066
[ -L "$1" ] || [ -d "$1" ] || mkdir "$1" || exit 40 # a link of another user in /tmp is no directory
if [ -L "$1" ] || [ ! -O "$1" ]; then
    echo "$1 belongs to $(stat -c '%U (uid %u)' "$1"): it is not the job's user's, or a link" >&2
    exit 40
fi
chmod 711 "$1" && cd "$1" || exit 40
undo() { [ "$3" = go ] || kill -CONT $(pgrep -s "$4") "$4" 2>/dev/null; rm -f "$2.new"; exit 41; }
[ "$3" = stop ] && stop=--stop || stop=
timeout -k 5 "$5" "$6/cr_checkpoint" $stop --tree --file "$2.new" "$4" >&2 || undo "$@"
sync "$2.new" && size=$(stat -c %s "$2.new") && sum=$(sha256sum <"$2.new") || undo "$@"
mv "$2.new" "$2" && echo "${sum%% *}" >"$2.sum" || undo "$@"
echo "$2" >last.new && mv last.new last || undo "$@"
for old in [0-9]*; do
    case $old in *.*) continue ;; esac
    [ "$old" -gt "$(($2 - $7))" ] || rm -f "$old" "$old.sum"
done
echo "$size"
"""


class _Records(Struct, frozen=True, kw_only=True):
    images: tuple[Image, ...] = ()


class BlcrCheckpointer:
    """``model.protocols.Checkpointer`` by BLCR.

    Images are the user's, in ``directory``/blcr/JOB on the shared file system, where the head may
    see their lengths. Which of them are good is noted in ``records``, which is SlurmUser's. The
    launcher compares an image's digest before it restarts it.
    """

    name = "blcr"

    def __init__(
        self,
        settings: BlcrSettings,
        directory: Path,
        records: Path,
        slurm: Slurm,
        *,
        keep: int = 2,
    ) -> None:
        self._settings = settings
        self._slurm = slurm
        self._directory = directory / "blcr"
        self._records = records
        self._keep = keep
        self._shells = Shells(settings)

    def close(self) -> None:
        """Close the connections."""
        self._shells.close()

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        """Save the run by one command on its node."""
        if len(run.nodes) != 1:
            raise CheckpointError(f"job {run.label}: on {len(run.nodes)} nodes, BLCR saves one")
        host, begun = run.nodes[0], time.time()
        pid = self._pids(host, run.job, deadline)[0]
        known = self._read(run.job).images
        number = known[0].number + 1 if known else 1
        left = deadline - time.time()
        if left < 1:
            raise CheckpointError(f"job {run.label}: no time left for a checkpoint")
        words = (
            str(self._directory / str(run.job)), str(number), "stop" if stop else "go", str(pid),
            f"{left:.0f}", self._settings.bin_dir, str(self._keep),
        )  # fmt: skip
        script = ("sh", "-c", _SAVE, "slurm-elastic", *words)
        own = ("sh", "-c", _OWN, "slurm-elastic", words[0], f"{run.uid}:{run.gid}")
        answer = self._shells.run(host, (*own, *self._as(run), *script), deadline=deadline)
        if answer.code != 0 or not answer.out.strip().isdigit():
            why = answer.err.strip().splitlines()[-1:] or [f"exit {answer.code}"]
            raise CheckpointError(f"job {run.label}: cr_checkpoint on {host}: {why[0]}")
        image = Image(
            job=run.job,
            label=run.label,
            attempt=run.attempt,
            number=number,
            method=self.name,
            node=host,
            taken=time.time(),
            seconds=time.time() - begun,
            size=int(answer.out),
            path=str(self._directory / str(run.job)),
        )
        try:
            self.verify(image)
        except CheckpointError:
            if stop:
                self.release(run)
            raise
        self._write(run.job, _Records(images=(image, *known)[: self._keep]))
        return image

    def release(self, run: JobRun) -> None:
        """Have all processes of the batch step go on."""
        deadline = time.time() + SIGNAL_PATIENCE
        host = run.nodes[0]
        pids = [str(pid) for pid in self._pids(host, run.job, deadline)]
        goes_on = ("sh", "-c", 'kill -CONT "$@"', "slurm-elastic", *pids)
        # As their user: if one of the pids was reused meanwhile, only a process of his own gets the
        # signal.
        answer = self._shells.run(host, (*self._as(run), *goes_on), deadline=deadline)
        if answer.code != 0:
            raise CheckpointError(f"job {run.label}: kill on {host}: {answer.err.strip()}")

    def images(self, run: JobRun) -> Sequence[Image]:
        """The recorded images that exist at full length."""
        return tuple(image for image in self._read(run.job).images if _whole(image))

    def origin(self, run: JobRun) -> Origin | None:  # noqa: ARG002
        """Only the program knows."""
        return None

    def hindered(self, run: JobRun) -> str:  # noqa: ARG002
        """Only a save tells."""
        return ""

    def verify(self, image: Image) -> None:
        """Check the length, as the head sees it; only the user may read the content."""
        if not _whole(image):
            raise CheckpointError(
                f"{image.path}/{image.number}: not there, empty, or not {image.size} bytes long"
            )

    def remove(self, job: int) -> None:
        """Delete them on a node that is up; the one that made the last is mostly gone by now."""
        records = self._read(job)
        if records.images:
            deadline = time.time() + SIGNAL_PATIENCE
            self._delete_on_any(self._up(job, records.images[0].node), job, deadline)
        (self._records / f"{job}.json").unlink(missing_ok=True)

    def _up(self, job: int, node: str) -> Sequence[str]:
        """That node first, then those of its partitions, which are set up alike."""
        try:
            nodes = self._slurm.nodes()
        except SlurmError as error:
            raise CheckpointError(f"job {job}: {error}") from error
        own = nodes.get(node)
        partitions = frozenset(own.partitions if own else ())
        found = sorted(
            (
                n.name for n in nodes.values()
                if (n.name == node or partitions & set(n.partitions))
                and phase(n) is Phase.UP and not is_down(n) and "NOT_RESPONDING" not in n.states
            ),
            key=lambda name: (name != node, name),
        )  # fmt: skip
        if not found:
            raise CheckpointError(f"no node of {node}'s partitions is up to remove them")
        return found

    def _delete_on_any(self, hosts: Sequence[str], job: int, deadline: float) -> None:
        for host in hosts[:MOST_HOSTS]:
            try:
                return self._delete(host, job, deadline)
            except CheckpointError as error:
                failed = error
        raise failed

    def _delete(self, host: str, job: int, deadline: float) -> None:
        """Delete the job's images, if the node has the shared directory."""
        # As root: rm follows no link, and only we name what is removed.
        script = 'cd -- "$1" && rm -rf --one-file-system -- "./$2"'
        words = ("sh", "-c", script, "slurm-elastic", str(self._directory), str(job))
        answer = self._shells.run(host, words, deadline=deadline)
        if answer.code != 0:
            raise CheckpointError(f"job {job}: rm on {host}: {answer.err.strip()}")

    def _pids(self, host: str, job: int, deadline: float) -> list[int]:
        """The batch step's processes, its first one first (scontrol(1), listpids)."""
        command = (f"{self._settings.scontrol}", "listpids", f"{job}.batch")
        answer = self._shells.run(host, command, deadline=deadline)
        rows = [line.split() for line in answer.out.splitlines()[1:]]
        rows = [row for row in rows if len(row) >= 4 and row[0].isdigit() and row[1] == str(job)]
        first = [int(row[0]) for row in rows if row[3] == "0"]
        if answer.code != 0 or not first:
            why = answer.err.strip() or "no process of its batch step"
            raise CheckpointError(f"job {job}: scontrol listpids on {host}: {why}")
        return first + [int(row[0]) for row in rows if row[3] != "0"]

    def _as(self, run: JobRun) -> tuple[str, ...]:
        """The words before a command that run it as the job's user, with his groups and nothing of
        root's.
        """
        user = (f"--reuid={run.uid}", f"--regid={run.gid}", "--init-groups", "--reset-env")
        return ("setpriv", *user, "--")

    def _read(self, job: int) -> _Records:
        try:
            return msgspec.json.decode((self._records / f"{job}.json").read_bytes(), type=_Records)
        except FileNotFoundError:
            return _Records()
        except (OSError, msgspec.DecodeError) as error:
            raise CheckpointError(f"{self._records}/{job}.json: {error}") from error

    def _write(self, job: int, records: _Records) -> None:
        try:
            self._records.mkdir(mode=statedir.DIRECTORY, parents=True, exist_ok=True)
            writing.replace(self._records / f"{job}.json", msgspec.json.encode(records))
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror}") from error


def _whole(image: Image) -> bool:
    """Whether the file has its full length. An empty one never counts, whatever was noted."""
    try:
        return 0 < image.size == (Path(image.path) / str(image.number)).lstat().st_size
    except OSError:
        return False
