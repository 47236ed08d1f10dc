"""Money: what machines, jobs, accounts and users cost, and what spent budgets change."""
