"""The driver side: `Runtime`, handles, placement, configuration."""
