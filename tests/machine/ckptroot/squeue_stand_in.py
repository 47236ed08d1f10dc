"""A squeue that answers the root part from files: ``NAME=VALUE`` lines, one file for each job."""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """\
#!/bin/sh
for word; do
    case $word in --jobs=*) job=${{word#--jobs=}} ;; esac
done
file={answers}
if ! [ -e "$file" ]; then
    echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2
    exit 1
fi
if grep -q error: "$file"; then
    cat "$file" >&2
    exit 1
fi
IFS=,
for field in $word; do
    name=${{field%%:*}} mark=${{field#*:0}}
    [ "$name" = JobID ] && printf '%s%s' "$job" "$mark" && continue
    printf '%s%s' "$(sed -n "s/^$name=//p" "$file")" "$mark"
done
echo
"""


def write_squeue(program: Path, answers: str) -> None:
    """Write the program. ``answers``: the path of the file, in which ``$job`` is the job's number.
    A job without a file is one of a slurmctld that does not answer.
    """
    program.write_text(_PROGRAM.format(answers=answers))
    program.chmod(0o755)


def answer(state: str, uid: int, restarts: int = 0, reason: str = "None") -> str:
    """The file of a job."""
    return (
        f"ArrayJobID=0\nArrayTaskID=N/A\nState={state}\nReason={reason}\nUserID={uid}\n"
        f"RestartCnt={restarts}\nSubmitTime=1800000000\nPreemptTime=N/A\nNodeList=n1\n"
        "BatchHost=n1\nNumNodes=1\n"
    )
