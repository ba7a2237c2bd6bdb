"""The wrappers for Gymnasium's vector environments."""
