"""Success classifiers: trained, judged, saved as bundles."""
