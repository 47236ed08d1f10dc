"""Decides which machines to buy, from which offers, for which jobs, and explains refusals."""
