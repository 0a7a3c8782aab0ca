"""`make soak`: random faults against running gangs on the lab, and what must hold all along.

`plan` (pure) says what happens when; `seen` (pure) is one look at the cluster; `invariants`, `accounts` and `recovery`
(pure) judge looks; `inject`, `observe` and `load` act and look; `run` puts them together; `report` (pure) tells.
"""
