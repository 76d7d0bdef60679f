"""Equipment of the tests that run on real Ray: one cluster per session, agents that do what a message says, other drivers.

The folder above is on the path of the tests, of every process of their cluster and of the drivers that they start.
"""
