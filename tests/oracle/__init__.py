"""What is right, by the pages alone: a model of its own beside the product's.

It imports nothing of the policies, the features or the ledger's own sums (``test_written_apart.py``).
It reads the answers that the product gives to people, Slurm's answers, and the fake clouds' meters.
"""
