"""A look-up that failed is not an empty answer: "could not look" must never count as "there is none".

Nothing may end, be removed or start over because a list is empty that could not be read. So a
function of these rooms answers a failed look with an error or with None, which its callers must
handle. The exceptions are listed here, each with the reason why the empty answer is right.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "slurm_elastic"
ROOMS = (
    "checkpointers", "ckptman", "controller", "features", "machine/ckptroot", "machine/jobfiles",
    "machine/local", "policies", "providers", "slurm/client", "state", "watch/watchdog.py",
)  # fmt: skip
"""The rooms that decide about work, machines and files."""
FAILED = frozenset(
    {
        "BaseException", "CheckpointError", "Exception", "OSError", "PermissionError",
        "ProviderError", "RequestRefused", "SlurmElasticError", "SlurmError", "TransientError",
        "libvirt.libvirtError", "sqlite3.Error", "subprocess.TimeoutExpired",
    }
)  # fmt: skip
"""Errors that say that a look failed. FileNotFoundError, for example, says that there is none."""
EMPTY_CALLS = frozenset({"dict", "frozenset", "list", "set", "tuple"})
RIGHT = {
    "ckptman/nodes.py _ended_ids": "no machine counts as ended: its notice stays",
    "controller/ending.py find_gone": "no machine counts as gone: the next round asks again",
    "ckptman/moves/migration.py _list_images": "recorded; nothing is removed, and the launcher looks again",
    "ckptman/saves.py _lifted_for_now": "an early lift is repeated after the next save",
    "ckptman/verdicts.py spot_nodes": "no node counts as spot: nothing moves for that",
    "controller/snapshot.py read_offers": "without offers nothing is bought; the error is kept",
    "features/orders/departures.py _moves": "None would requeue jobs; no known move requeues none",
    "features/orders/image_replacement.py _new_image": "without a known image no machine leaves",
    "features/network/tunnel_keys.py flaw_of": "the head has made no key yet; other keys are compared",
    "features/orders/owners.py owners_of": "only for tags of bills",
    "features/power/stopping.py stop_again": "the answer is what was refused; the round repeats the rest",
    "machine/ckptroot/caller.py _text": "a name for messages",
    "machine/ckptroot/caller.py program_of": "a name for messages",
    "machine/ckptroot/dmtcp_images.py names": "an image without files is not complete",
    "machine/ckptroot/dmtcp_nodes.py written": "only the progress of a save that goes on",
    "machine/ckptroot/instructions.py _first_processor": "an unknown processor refuses no image",
    "machine/ckptroot/job_state.py next_number": "with 0 every job may be lost: its files stay",
    "machine/ckptroot/store.py tried_nodes": "the image is tried on that node once more",
    "machine/ckptroot/sweep.py _sweep_job": "the answer is a text for people; the files stay",
    "machine/ckptroot/tempfiles.py _read_record": "without a record nothing is removed",
    "machine/ckptroot/tempfiles.py prepare": "the job has no TMPDIR, as without us",
    "machine/jobfiles/head.py _size_of": "an output that cannot be looked at cannot be written, too",
    "machine/local/local_processes.py _environment": "an unread process counts as none of ours",
    "providers/aws/catalog.py _spot_prices": "without a price no spot machine is bought",
    "providers/aws/fleet.py _give_nodes": "the next round tags them",
    "providers/aws/image_store.py _describe": "a name that people read",
    "providers/libvirt/domains.py _addresses": "the node keeps the address that it has",
    "providers/openstack/boothook.py ask_nova": "runs on the machine, which asks again",
    "providers/openstack/boothook.py read_file": "runs on the machine, which asks nova then",
    "slurm/client/cli.py _offered": "a refusal, not silence: this release has no choice",
    "slurm/client/commands/comment_commands.py _comments_of": "Slurm says that it has no such job",
    "features/news/telling.py moves_of_a_day": "a page for people, while ckptman has no records",
    "machine/ckptroot/dmtcp_images.py count_of_set": "with 0 the set is not complete",
    "machine/ckptroot/dmtcp_open_files.py flags_of": "the process has just ended",
    "machine/ckptroot/dmtcp_probe.py _count": "with 0 the probe has not saved",
    "machine/ckptroot/mpi.py _default_mpi": "a save of MPI is then not tried",
    "machine/ckptroot/proc.py shared_of": "a size that people read",
    "machine/ckptroot/proc.py status_of": "the process has just ended",
    "machine/ckptroot/proc.py threads_of": "the process has just ended",
    "machine/ckptroot/quiet_continue.py _make_ready": "the task gets a plain SIGCONT",
    "machine/ckptroot/sockets.py stays_here": "only the setting may be unread; sockets are listed",
    "machine/ckptroot/unrestorable.py _environment": "one hint fewer; the save itself proves more",
    "machine/ckptroot/unrestorable.py _program": "one hint fewer; the save itself proves more",
    "state/heads.py newest": "a number that people read",
    "state/host.py _cards": "a host without cards is known by its other marks",
    "state/host.py _text": "a host without this mark is known by its other marks",
    "state/locks.py _holder": "the name of who holds the lock is only for people",
    "state/ledger/__init__.py journal_origin": "an unread journal is not taken for another one",
    "state/store/journal.py _after": "nothing is cut then",
    "state/store/view.py boot": "without an id each start counts as another boot",
    "watch/watchdog.py _file_state": "no sign of life: each machine still has to be unneeded",
}
"""By place: why the empty answer harms nobody."""


def sources() -> Iterator[Path]:
    for room in ROOMS:
        path = PACKAGE / room
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def is_empty(value: ast.expr | None) -> bool:
    """Whether it is an empty collection or text, or 0. None says "unknown", False says "not"."""
    match value:
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Set(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Constant(value=constant):
            return constant is not None and not isinstance(constant, bool) and not constant
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
            return name in EMPTY_CALLS
    return False


def is_failure(error: ast.expr | None) -> bool:
    errors = error.elts if isinstance(error, ast.Tuple) else [error]
    return any(e is None or ast.unparse(e) in FAILED for e in errors)


def suppressed(block: ast.With) -> list[ast.expr]:
    calls = [item.context_expr for item in block.items if isinstance(item.context_expr, ast.Call)]
    return [a for c in calls if ast.unparse(c.func).endswith("suppress") for a in c.args]


def hides_failure(function: ast.FunctionDef) -> bool:
    """Whether the function answers a failed look as if nothing was there."""
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and is_failure(node.type):
            returns = [r for r in ast.walk(node) if isinstance(r, ast.Return)]
            if any(is_empty(r.value) for r in returns):
                return True
    # ``with suppress(OSError): return found``, and then ``return []``.
    last = function.body[-1]
    return (
        isinstance(last, ast.Return)
        and is_empty(last.value)
        and any(
            isinstance(node, ast.With) and any(map(is_failure, suppressed(node)))
            for node in function.body[:-1]
        )
    )


def hidden_failures() -> set[str]:
    return {
        f"{path.relative_to(PACKAGE)} {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and hides_failure(node)
    }


def test_a_failed_look_is_no_empty_answer() -> None:
    found = hidden_failures()
    assert found - RIGHT.keys() == set(), "raise, return None, or say in RIGHT why it is harmless"
    assert RIGHT.keys() - found == set(), "these places no longer exist"


@pytest.mark.parametrize(
    ("code", "hides"),
    [
        ("try: return look()\n except OSError: return []", True),
        ("try: return look()\n except (KeyError, ProviderError): return {}", True),
        ("try: return look()\n except Exception: return frozenset()", True),
        ("try: return look()\n except: return ''", True),
        ("with suppress(OSError):\n  return look()\n return ()", True),
        ("try: return look()\n except OSError: return None", False),
        ("try: return look()\n except FileNotFoundError: return []", False),
        ("try: return look()\n except OSError: raise", False),
        ("with suppress(KeyError):\n  return look()\n return ()", False),
    ],
)
def test_the_check_sees_what_it_must(code: str, *, hides: bool) -> None:
    (function,) = ast.parse(f"def f():\n {code}").body
    assert isinstance(function, ast.FunctionDef)
    assert hides_failure(function) is hides
