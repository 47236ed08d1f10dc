"""The page in front of a real slurmctld: it shows real jobs, and notices when they change."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import msgspec
import needs
import pytest
from status_cases import LOCAL, NOW, buy

from slurm_elastic.model.cluster import Pool
from slurm_elastic.state.ckptstate.orders import DROPS, SaveOrder
from slurm_elastic.state.ledger import Ledger
from tests.slurm.live_site import LiveSite, wait_for
from tests.watch.web.acting_stage import NOBODY, SUDO, Visitor, acting_page

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    needs.ROOT,
    needs.unless("slurmctld", "munged"),
]
YAML = """
cluster: {{name: alps}}
state_dir: {root}/state
slurm: {{conf: {conf}}}
clouds:
  - {{name: onprem, provider: local, location: on-premises}}
pools:
  - {{name: rack, cloud: onprem, nodes: {node}, slurmd_port: 17001, cpus: 1, memory: 1G}}
users:
  operators: [sudo]
"""


def test_jobs_of_a_real_slurm_are_drained_and_saved(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = open_path / "site"
    root.mkdir(mode=0o755)
    live = LiveSite("small", root)
    monkeypatch.setenv("SLURM_CONF", str(live.conf))
    file, state = open_path / "slurm-elastic.yaml", root / "state"
    (state / DROPS).mkdir(parents=True)
    file.write_text(YAML.format(root=root, conf=live.conf, node=live.node))
    ledger = Ledger(state / "ledger.db")
    pool = Pool(name="rack", cloud="onprem", nodes=(live.node,), cpus=1, real_memory=1000)
    buy(ledger, "g1", pool, LOCAL, NOW - 60, **{live.node: "local-1"})
    try:
        live.start()
        with acting_page(file, open_path / "page.sock", group=SUDO) as sock:
            operator, admin = Visitor(sock, NOBODY, SUDO), Visitor(sock)
            shown = operator.asks("drain", subject=live.node, aggressive="yes")
            assert shown.status == HTTPStatus.OK, shown.words
            assert "job" not in shown.effects[-1]
            job = live.sbatch("-w", live.node, "--comment=ckpt=signal,saved=file:state")
            wait_for("the job to run", lambda: live.job(job)["JobState"] == "RUNNING")
            again = operator.confirms(shown)
            assert again.status == HTTPStatus.CONFLICT
            assert again.effects[-1].endswith(f": {job}.")
            assert ledger.directives.all() == ()
            done = operator.confirms(again)
            assert done.status == HTTPStatus.OK, done.words
            (order,) = ledger.directives.all()
            assert (order.who, order.word.node_names) == ("nobody", (live.node,))

            refused = operator.asks("save", job=str(job))
            assert refused.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
            done = admin.does("save", job=str(job))
            assert f"is asked to save job {job}" in done.words
            (dropped,) = (state / DROPS).iterdir()
            saved = msgspec.json.decode(dropped.read_bytes(), type=SaveOrder)
            assert (saved.job, saved.who) == (job, "root")
            missing = admin.asks("save", job="999999")
            assert "job 999999 is not running" in missing.words.lower()
    finally:
        live.stop()
        ledger.close()
