"""The page of the extension and the routes behind it: who may see what, limits, live changes, and the page's own files.

Reads only. What a caller may not see never reaches the functions that answer (`scope.ScopedCache`); docs/adr/0037.
"""
