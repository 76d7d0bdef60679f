"""Running tools: the envelope around one body, and executors for a batch."""
