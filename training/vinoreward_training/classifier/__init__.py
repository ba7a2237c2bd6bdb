"""Success classifiers: trained, evaluated, saved as bundles."""
