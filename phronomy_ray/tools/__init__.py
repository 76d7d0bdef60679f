"""Tool bodies: assembly, envelope, executors."""
