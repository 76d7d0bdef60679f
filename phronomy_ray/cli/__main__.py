"""``python -m phronomy_ray.cli``."""

from phronomy_ray.cli import main

main()
