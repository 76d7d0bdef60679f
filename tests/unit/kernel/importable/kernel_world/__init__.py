"""The world around the kernel, for its property tests: agents, a store in memory, a shell, and the laws."""
