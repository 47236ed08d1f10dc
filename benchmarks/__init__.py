"""Benchmarks: each prints a table and writes JSON, as ratios against a peer or a floor."""
