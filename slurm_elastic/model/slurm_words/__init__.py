"""Slurm's own words: each pending reason, state and flag of jobs, nodes and partitions has one row.

A row contains whether the job, node or partition becomes free by itself, who must act, whether
growth counts the job, and the sentence for people. All other code uses these tables and never
compares such a word itself.
"""
