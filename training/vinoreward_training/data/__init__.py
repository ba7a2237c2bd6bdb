"""Labelled images: checked, loaded, written."""
