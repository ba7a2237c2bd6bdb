"""Policies as plain data: layers, weights, and the arithmetic they stand for. No torch needed."""
