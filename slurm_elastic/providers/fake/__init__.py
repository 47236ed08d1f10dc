"""A cloud in memory, for rehearsals and tests."""
