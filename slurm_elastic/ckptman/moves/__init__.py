"""The moves of jobs, from the first save to the released node."""
