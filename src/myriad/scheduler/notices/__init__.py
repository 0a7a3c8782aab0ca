"""Who was evicted for whom, told within a second, delivered once and kept.

`checkpoint`, `facts`, `text`, `patterns` and `trouble` are pure; `book` keeps the records in the cluster, `courier`
delivers, `observer` does the work of the leader, `announce` tells what is planned, `report` answers people.
"""
