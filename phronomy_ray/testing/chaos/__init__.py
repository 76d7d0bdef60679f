"""Agents under load while processes, nodes and connections are taken away, and a checker of what is left.

`schedule` says from a seed what is done when, `load` is what agents and drivers do meanwhile, `adversary` does it, `checker` reads
the store, the effects and what drivers were told, and `storm` is all of it together.
"""
