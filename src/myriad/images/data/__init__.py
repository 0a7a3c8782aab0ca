"""Programs that run inside images; each is one file of the standard library."""
