"""What the benchmarks share: their document, statistics, stores and Ray."""
