"""Growth: machines are started for waiting jobs, and ended when nothing needs them."""
