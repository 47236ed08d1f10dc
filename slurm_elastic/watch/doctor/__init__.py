"""Doctor says what is wrong and what to do about it. Looking changes nothing. A module finds things
out and has the sentences for them: ``head`` (state directory, spool, slurm.conf), ``services``
(slurm-elasticd and ckptman), ``clouds``, ``catalogue`` (types and prices), ``network`` (addresses
and tunnel), ``auth`` (the keys of Slurm's), ``threats`` (machines that are taken away), ``kept``
(what Slurm or a person keeps from jobs), ``environment`` (of the services), ``bursting`` (whether a
job of one node would burst, and whether budgets and allow lists of accounts hold anybody back).
``cli/doctor.py`` says which are asked, ``watch/causes.py`` leaves out what is told already.
"""
