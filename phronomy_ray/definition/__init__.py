"""What a user writes: agents and tools, and what they compile to."""
