"""Captures of labelled pictures: placed, played by a policy, or taken from videos."""
