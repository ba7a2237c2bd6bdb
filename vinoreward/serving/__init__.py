"""Services of learned rewards beyond one machine."""
