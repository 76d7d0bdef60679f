"""Test equipment for users: a model server, a cluster and a PostgreSQL of their own, faults, conformance suites."""
