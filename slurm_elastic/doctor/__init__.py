"""What is wrong, and what to do: each look changes nothing and is one or more findings."""
