"""The page as an app of Open OnDemand: a process for each user, which sees what that one may."""

from slurm_elastic.cli.operate.web import wsgi

application = wsgi()
