"""Bundles made from other people's models."""
