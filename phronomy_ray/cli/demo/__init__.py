"""``phronomy demo``: an agent works, loses its node, comes back on another, waits for a human and finishes.

`agent` is what a user would write; `script` is the model behind the loopback server; `story` tells it on a real cluster;
`checker` judges the outcome and shares no code with the tools.
"""
