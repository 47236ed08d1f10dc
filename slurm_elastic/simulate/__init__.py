"""Replays a site's job history on machines that come and go, and adds up their cost.

``simulate`` is the interface for other people's programs (docs/simulate.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.configfile import load
from slurm_elastic.policies.policy_text import split
from slurm_elastic.simulate import engine
from slurm_elastic.simulate.histories import sacct, workload
from slurm_elastic.simulate.histories.swf import History
from slurm_elastic.simulate.result import SimulationResult as SimulationResult
from slurm_elastic.simulate.setting import Options as Options
from slurm_elastic.simulate.setting import setting_of

AnyHistory = str | Path | History | Iterable[Mapping[str, object]]


def simulate(
    history: AnyHistory,
    site: str | Path | Config | tuple[int, int],
    policy: str = "configured",
    options: Options | None = None,
    *,
    progress: engine.Progress | None = None,
) -> SimulationResult:
    """Replay a history on a site under one or more policies, as ``slurm-elastic simulate`` does.

    ``history``: a file of the Standard Workload Format, of the Grid Workload Format or of sacct
    (text or JSON, gzip or plain); or rows under sacct's names (JobIDRaw, Submit, ElapsedRaw,
    ReqCPUS, ...), from a CSV file or a dataframe. ``site``: a configuration, its file, or (nodes,
    processors per node) for a static cluster. ``policy``: policies in the syntax of ``--compare``,
    separated by commas; all are checked before the first run begins. ``progress`` is called with
    the number of new arrivals.

    Raises ConfigError, with the same message as the command, if the input cannot be read or makes
    no sense. Raises SlurmElasticError if the books of a run do not add up.
    """
    options = options or Options()
    if isinstance(site, tuple):
        options = replace(options, static=site)
        site = Config(cluster=Cluster(name="static"), clouds=(), pools=())
    elif not isinstance(site, Config):
        site = load(Path(site))
    setting = setting_of(_read(history, options.max_jobs), site, options)
    scenarios = [(text, setting.scenario(text)) for text in split(policy)]
    if not scenarios:
        raise ConfigError("--compare names no policy")
    start = setting.history.start
    runs = [(text, engine.simulate(setting.jobs, s, start, progress)) for text, s in scenarios]
    return SimulationResult(setting, tuple(runs))


def _read(history: AnyHistory, max_jobs: int | None) -> History:
    if isinstance(history, History):
        return history
    if not isinstance(history, str | Path):
        return sacct.of_rows(history)
    path = Path(history)
    load_file = sacct.load if sacct.is_of_sacct(path) else workload.load
    return load_file(path, max_jobs)
