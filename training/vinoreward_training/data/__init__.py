"""Labelled pictures: checked, loaded, written."""
