"""State encoders: trained, tested, saved as bundles."""
