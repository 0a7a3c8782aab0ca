"""The scheduler extension: watches the cluster, plans where a gang should go, steers Kueue, and explains.

Pure parts (no I/O, no API client): `model` (data classes), `snapshot` (the cluster as arrays), `placement` (the
planner), `explain` (one answer to "why is my job waiting") and `replay` (a decision made again). `decisions` keeps the
append-only log of what was decided. Everything that talks to Kubernetes stands beside them and calls them.
"""
