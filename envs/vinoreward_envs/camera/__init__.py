"""The camera over the hover task: what a picture is, and the renderers that draw it."""
