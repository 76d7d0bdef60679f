"""One agent's event loop: drives the kernel, executes its commits, performs its effects. Knows no Ray."""
