"""Test equipment for users: model server, conformance suites, invariants."""
