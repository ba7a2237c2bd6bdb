"""Bundles made of other people's models."""
