"""Sums over all time, in the table ``counters`` of both memories."""

COUNT = (
    "insert into counters (name, value) select key, value from json_each(?) where true "
    "on conflict (name) do update set value = value + excluded.value"
)
"""Adds to counters: the new values as a JSON object by name."""
