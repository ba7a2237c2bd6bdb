"""Engines: where actors and compressor run, and how weights and experience travel."""
