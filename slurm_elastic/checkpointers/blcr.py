"""Method ``blcr``: Berkeley Lab Checkpoint/Restart, for sites that still run it.

No current kernel supports BLCR. Our tests use a real sshd, and programs that stand in for
cr_run(1), cr_checkpoint(1) and cr_restart(1). The launcher starts the job's script by cr_run or, if
it finds an image, by cr_restart. This module logs in to the job's node over SSH as root, but runs
cr_checkpoint as the job's user; the restored processes are the user's, too.
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
from slurm_elastic.config.sections.checkpoint import BlcrSettings
from slurm_elastic.model.checkpoint import Image, JobRun, Origin
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase
from slurm_elastic.state import statedir

log = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 60.0
"""Seconds that ``release`` and ``remove`` may take."""
MAX_REMOVE_HOSTS = 3
"""Nodes on which one call of ``remove`` tries to delete a job's images."""

# As root: $1 is the job's directory, $2 its owner, then comes the command. In a directory like /tmp
# a user could create the directories of other users' jobs first, so root makes it if root can (the
# file server may refuse root).
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
# After the deadline the head waits no longer. Only this script can let the job continue then.
end=$(($(date +%s) + $5))
in_time() { n=$((end - $(date +%s))); [ "$n" -gt 0 ] && timeout -k 5 "$n" "$@"; }
[ "$3" = stop ] && stop=--stop || stop=
in_time "$6/cr_checkpoint" $stop --tree --file "$2.new" "$4" >&2 || undo "$@"
in_time sync "$2.new" && size=$(stat -c %s "$2.new") && sum=$(in_time sha256sum <"$2.new") ||
    undo "$@"
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

    Images belong to the user. They lie in ``directory``/blcr/JOB on the shared file system, where
    the head can see their lengths but not read them. The directory ``records`` belongs to SlurmUser
    and lists the complete images. The launcher compares an image's digest before a restart.
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
        """Save the run by one command on its node. Raises CheckpointError; a run that ``stop`` has
        stopped continues then.
        """
        if len(run.nodes) != 1:
            raise CheckpointError(
                f"job {run.label} runs on {len(run.nodes)} nodes, but BLCR saves jobs on one"
            )
        host, started_at = run.nodes[0], time.time()
        pid = self._pids(host, run.job, deadline)[0]
        recorded = self._images_of(run)
        number = recorded[0].number + 1 if recorded else 1
        seconds_left = deadline - time.time()
        if seconds_left < 1:
            raise CheckpointError(f"job {run.label}: no time left for a checkpoint")
        arguments = (
            str(self._directory / str(run.job)), str(number), "stop" if stop else "go", str(pid),
            f"{int(seconds_left)}", self._settings.bin_dir, str(self._keep),
        )  # fmt: skip
        script = ("sh", "-c", _SAVE, "slurm-elastic", *arguments)
        make_directory = ("sh", "-c", _OWN, "slurm-elastic", arguments[0], f"{run.uid}:{run.gid}")
        answer = self._shells.run(
            host, (*make_directory, *self._as_user(run), *script), deadline=deadline
        )
        if answer.code != 0 or not answer.out.strip().isdigit():
            error_lines = answer.err.strip().splitlines()[-1:] or [f"exit {answer.code}"]
            raise CheckpointError(f"job {run.label}: cr_checkpoint on {host}: {error_lines[0]}")
        image = Image(
            job=run.job,
            label=run.label,
            attempt=run.attempt,
            number=number,
            method=self.name,
            node=host,
            taken=time.time(),
            seconds=time.time() - started_at,
            size=int(answer.out),
            path=str(self._directory / str(run.job)),
            uid=run.uid,
            submitted=run.submitted,
        )
        try:
            self.verify(image)
        except CheckpointError:
            if stop:
                self.release(run)
            raise
        self._write(run.job, _Records(images=(image, *recorded)[: self._keep]))
        return image

    def release(self, run: JobRun) -> None:
        """Continue all processes of the batch step."""
        deadline = time.time() + COMMAND_TIMEOUT_S
        host = run.nodes[0]
        pids = [str(pid) for pid in self._pids(host, run.job, deadline)]
        kill = ("sh", "-c", 'kill -CONT "$@"', "slurm-elastic", *pids)
        # As the job's user: if the kernel has reused a pid since the listing, the signal can only
        # reach another process of the same user.
        answer = self._shells.run(host, (*self._as_user(run), *kill), deadline=deadline)
        if answer.code != 0:
            raise CheckpointError(f"job {run.label}: kill on {host}: {answer.err.strip()}")

    def images(self, run: JobRun) -> Sequence[Image]:
        """The recorded images that exist at full length."""
        return tuple(image for image in self._images_of(run) if _is_whole(image))

    def _images_of(self, run: JobRun) -> tuple[Image, ...]:
        """The recorded images of this job, without images of an earlier job with its number."""
        images = self._read(run.job).images
        return tuple(image for image in images if run.key.may_follow(image.key))

    def origin(self, run: JobRun) -> Origin | None:  # noqa: ARG002
        """Return None: the head cannot see which image the program was restarted from."""
        return None

    def hindered(self, run: JobRun) -> str:  # noqa: ARG002
        """Return "": only an attempt shows whether a save is possible."""
        return ""

    def is_at_work(self, run: JobRun) -> bool:  # noqa: ARG002
        """Return False: the program has no launcher that reports it."""
        return False

    def is_silent(self, run: JobRun) -> bool:  # noqa: ARG002
        """Return False: the program has no launcher that could report."""
        return False

    def verify(self, image: Image) -> None:
        """Check the length only, because the head may not read the user's file. Raises
        CheckpointError.
        """
        if not _is_whole(image):
            raise CheckpointError(
                f"{image.path}/{image.number}: missing, empty, or not {image.size} bytes long"
            )

    def remove(self, job: int) -> None:
        """Delete the images by a command on a running node. The node that made the last image is
        mostly gone when its job has ended. Raises CheckpointError.
        """
        records = self._read(job)
        if records.images:
            deadline = time.time() + COMMAND_TIMEOUT_S
            self._delete_on_first(self._up_hosts(job, records.images[0].node), job, deadline)
        (self._records / f"{job}.json").unlink(missing_ok=True)

    def _up_hosts(self, job: int, node: str) -> Sequence[str]:
        """Return the running nodes: ``node`` first, then the other nodes of its partitions,
        because they mount the same directories.
        """
        try:
            nodes = self._slurm.nodes()
        except SlurmError as error:
            raise CheckpointError(f"job {job}: {error}") from error
        last_node = nodes.get(node)
        partitions = frozenset(last_node.partitions if last_node else ())
        hosts = sorted(
            (
                n.name for n in nodes.values()
                if (n.name == node or partitions & set(n.partitions))
                and phase(n) is Phase.UP and not is_down(n) and "NOT_RESPONDING" not in n.states
            ),
            key=lambda name: (name != node, name),
        )  # fmt: skip
        if not hosts:
            raise CheckpointError(f"no node of {node}'s partitions is up to remove the images")
        return hosts

    def _delete_on_first(self, hosts: Sequence[str], job: int, deadline: float) -> None:
        for host in hosts[:MAX_REMOVE_HOSTS]:
            try:
                return self._delete(host, job, deadline)
            except CheckpointError as error:
                last_error = error
        raise last_error

    def _delete(self, host: str, job: int, deadline: float) -> None:
        """Delete the job's images. Raises CheckpointError, also if the node lacks the shared
        directory.
        """
        # Root may do this safely: rm follows no links, and both parts of the path are ours.
        script = 'cd -- "$1" && rm -rf --one-file-system -- "./$2"'
        command = ("sh", "-c", script, "slurm-elastic", str(self._directory), str(job))
        answer = self._shells.run(host, command, deadline=deadline)
        if answer.code != 0:
            raise CheckpointError(f"job {job}: rm on {host}: {answer.err.strip()}")

    def _pids(self, host: str, job: int, deadline: float) -> list[int]:
        """Return the batch step's process ids; its first process comes first (scontrol(1),
        listpids).
        """
        command = (f"{self._settings.scontrol}", "listpids", f"{job}.batch")
        answer = self._shells.run(host, command, deadline=deadline)
        rows = [line.split() for line in answer.out.splitlines()[1:]]
        rows = [row for row in rows if len(row) >= 4 and row[0].isdigit() and row[1] == str(job)]
        # The fourth column is LOCALID. It is 0 for the batch script itself, the root of the tree of
        # processes that cr_checkpoint saves.
        script_pids = [int(row[0]) for row in rows if row[3] == "0"]
        if answer.code != 0 or not script_pids:
            reason = answer.err.strip() or "no process of its batch step"
            raise CheckpointError(f"job {job}: scontrol listpids on {host}: {reason}")
        return script_pids + [int(row[0]) for row in rows if row[3] != "0"]

    def _as_user(self, run: JobRun) -> tuple[str, ...]:
        """Return the words before a command that run it as the job's user, with the user's groups
        and without root's environment.
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


def _is_whole(image: Image) -> bool:
    """Return True if the file has its recorded length. An empty file is never complete."""
    try:
        return 0 < image.size == (Path(image.path) / str(image.number)).lstat().st_size
    except OSError:
        return False
