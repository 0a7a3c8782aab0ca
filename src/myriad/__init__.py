"""Myriad: a whole GPU cluster from bare machines, reproducibly."""
