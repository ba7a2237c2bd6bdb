"""From nothing to a policy in one command."""
