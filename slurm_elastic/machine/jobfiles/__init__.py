"""Copies a job's files between the head and a machine without a shared file system (docs/data.md).

``head`` is the end on the head, which runs as the job's user. ``node`` is the end on the machine.
The two talk by ``wire`` through SSH. Both use only the standard library and any Python from 3.9 on,
because machines get them as one file (``bundle``). ``copier`` is the root service of the head that
starts ``head`` as the job's user.
"""
