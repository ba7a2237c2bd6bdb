"""Labels by people: a local page with one image after another, and the log of what they say."""
