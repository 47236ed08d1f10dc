"""Orders of operators, and the jobs and machines that they move."""
