"""Networks that turn pictures into latent states, and what runs them."""
