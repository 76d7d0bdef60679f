"""What a driver touches: `Runtime`, its handles, configuration and placement."""
