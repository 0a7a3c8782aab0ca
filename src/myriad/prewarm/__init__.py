"""Rolling images out to many nodes: who begins, how many at a time, from which registry, and when it stops. Pure.

`waves` decides who goes when, `limits` how many may pull at once, `registries` where each node pulls from, `verdict`
whether the next wave begins, and `simulate` plays all of it through before a byte moves.
"""
