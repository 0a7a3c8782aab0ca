"""GPU-hours: what each team used, kept so that nobody can change it, and budgets.

`facts` (pure) reads a Workload, `store` keeps rows, `journal` carries facts to the database whatever happens to it,
`recorder` follows the cluster, `budgets` and `keeper` hold queues whose budget is used up, `report` sums up.
"""
