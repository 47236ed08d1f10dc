"""Slurm's own words: each pending reason, state and flag of jobs, nodes and partitions has one row.

A row says whether the job, node or partition comes free by itself, who must act, whether growth
counts the job, and what people read. All other code asks these tables and compares no such word.
"""
