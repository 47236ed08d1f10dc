"""Replays a site's job history on machines that come and go, and counts what they cost.

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
from slurm_elastic.simulate import engine, sacct, swf
from slurm_elastic.simulate.result import Result as Result
from slurm_elastic.simulate.setting import Options as Options
from slurm_elastic.simulate.setting import setting_of
from slurm_elastic.simulate.swf import History

AnyHistory = str | Path | History | Iterable[Mapping[str, object]]


def simulate(
    history: AnyHistory,
    site: str | Path | Config | tuple[int, int],
    policy: str = "configured",
    options: Options | None = None,
    *,
    progress: engine.Progress | None = None,
) -> Result:
    """What ``slurm-elastic simulate`` does, as values: replay a history on a site under policies.

    ``history``: a file of the Standard Workload Format or of sacct (text or JSON), packed by gzip
    or not; or rows by sacct's names (JobIDRaw, Submit, ElapsedRaw, ReqCPUS, ...), as a csv or a
    dataframe gives them. ``site``: a configuration, or its file, or (nodes, processors of each)
    where all nodes stand. ``policy``: as ``--compare`` takes it, several with commas between; all
    are checked before the first job is simulated. ``progress`` hears of jobs that have arrived.

    Raises ConfigError, with the command's sentences, for whatever cannot be read or makes no sense;
    SlurmElasticError if the books of a run do not add up.
    """
    options = options or Options()
    if isinstance(site, tuple):
        options = replace(options, static=site)
        site = Config(cluster=Cluster(name="static"), clouds=(), pools=())
    elif not isinstance(site, Config):
        site = load(Path(site))
    setting = setting_of(_read(history), site, options)
    scenarios = [(one, setting.scenario(one)) for one in split(policy)]
    if not scenarios:
        raise ConfigError("--compare names no policy")
    start = setting.history.start
    runs = [(one, engine.simulate(setting.jobs, s, start, progress)) for one, s in scenarios]
    return Result(setting, tuple(runs))


def _read(history: AnyHistory) -> History:
    if isinstance(history, History):
        return history
    if not isinstance(history, str | Path):
        return sacct.of_rows(history)
    path = Path(history)
    return sacct.load(path) if sacct.is_of_sacct(path) else swf.load(path)
