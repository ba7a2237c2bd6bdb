"""Run folders: what is written there, and the reports that people read."""
