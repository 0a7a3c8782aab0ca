"""Upgrades: what changes on which node, in which order, what stands in the way, and the way back."""
