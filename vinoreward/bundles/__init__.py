"""The bundle: a network with all that is needed to use it and to trust it."""
