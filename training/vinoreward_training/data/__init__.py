"""Labelled pictures: captured, checked, loaded."""
