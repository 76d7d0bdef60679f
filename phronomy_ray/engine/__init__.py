"""One agent's asyncio loop: the kernel driven by a store, a model and tools, without Ray."""
