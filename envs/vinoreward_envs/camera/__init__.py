"""The camera over the hover task: what an image is, and the renderers that draw it."""
