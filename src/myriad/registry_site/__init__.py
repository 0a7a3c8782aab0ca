"""The site's own registry, run in earnest: who vouches for it, who may use what in it, and what may leave it."""
