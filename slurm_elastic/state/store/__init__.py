"""What our services remember: a journal of facts, and sqlite as its view.

``journal`` has the lines, ``view`` the file that is asked, ``disk`` both as one; ``store`` is what
threads use, ``endurance`` how it goes on without a disk and ``merging`` how it comes back,
``trouble`` names what ails one; ``before`` takes over files of releases without a journal,
``backup`` is what ``slurm-elastic journal`` does.
"""
