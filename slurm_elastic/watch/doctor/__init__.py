"""``doctor`` reports errors and what to do about them. It changes nothing.

Each module examines one part and has the sentences for its findings: ``head`` (state directory,
spool, slurm.conf), ``services`` (slurm-elasticd and slurm-elastic-ckptman), ``clouds``,
``catalogue`` (types and prices), ``network`` (addresses and tunnel), ``mounts`` (NFS servers,
asked by ``nfs``), ``auth`` (the keys of auth/slurm), ``copies`` (of jobs' files), ``threats``
(machines that are taken away), ``images`` (of jobs that slurmctld may have lost), ``kept``
(whatever Slurm or a person keeps from running), ``environment`` (of the services), ``two_heads``,
``plain_job`` and ``bursting`` (whether a job of one node would burst, and whether budgets and allow
lists of accounts bind anybody).
``cli/operate/doctor.py`` chooses the examinations; ``watch/causes.py`` removes findings whose cause
is already reported.
"""
