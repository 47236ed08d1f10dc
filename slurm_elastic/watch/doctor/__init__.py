"""Doctor says what is wrong and what to do: each look changes nothing and gives findings."""
