"""The `phronomy` command."""
