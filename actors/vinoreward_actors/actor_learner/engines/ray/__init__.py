"""The engine of a cluster, on Ray."""
