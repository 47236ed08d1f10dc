"""Questions answered by many simulations."""
