"""Labels by people: a local page with one picture after another, and the log of what they say."""
