"""Models: the port that the runtime speaks, and the implementations behind it."""
