"""Agents in a process, whatever the process is: the service of one agent, hosts of many, and the way to them. Without Ray."""
