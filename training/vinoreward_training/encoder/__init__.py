"""State encoders: trained, imported, judged, saved as bundles."""
