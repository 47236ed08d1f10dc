"""The files of jobs, copied to machines and back (``data: copy``)."""
