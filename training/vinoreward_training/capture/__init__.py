"""Captures of labelled images: placed, played by a policy, or taken from videos."""
