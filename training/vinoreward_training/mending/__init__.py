"""Refits a classifier from labels, and keeps it only if it is no worse."""
