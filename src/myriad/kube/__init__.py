"""The Kubernetes API as Myriad uses it: raw JSON over one small client, and caches that follow it.

Objects stay the dictionaries that the API server sent. Building model classes for them costs about
1 ms an object, which at 50,000 pods is a minute of start-up; a dictionary costs what parsing costs.
"""
