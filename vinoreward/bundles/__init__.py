"""The bundle: a network with everything needed to run and check it."""
