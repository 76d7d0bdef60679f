"""Agents under load in a storm of faults, and whether everything is right afterwards.

``python benchmarks/chaos.py --json --seconds 60 --seed 1 --store postgres --placement packed:2``. The seed says which faults come
when; the document holds them, so a failure can be played again.
"""

from __future__ import annotations

import sys

from support.report import Report, arguments

from phronomy_ray.testing.chaos.storm import StormConfig, as_document, run_storm


def main() -> None:
    """Run one storm and print its document; the exit code is 1 when something is wrong."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--placement", default="dedicated", help="dedicated, packed:<hosts> or in_process")
    parser.add_argument("--agents", type=int, default=2, help="for each of the two drivers")
    given = parser.parse_args()
    seconds = 20.0 if given.quick else given.seconds
    report = Report("chaos", given.json, given.quick)
    kind, _, hosts = given.placement.partition(":")
    storm = run_storm(
        StormConfig(
            seconds,
            given.seed,
            postgres=given.store == "postgres",
            hosts=int(hosts or 1) if kind == "packed" else 0,
            in_process=kind == "in_process",
            agents_per_driver=given.agents,
        ),
        tell=report.progress,
    )
    injected = sum(storm.injected.values())
    report.row(**as_document(storm))
    report.ratios |= {
        "violations": float(len(storm.violations)),
        "faults_injected": float(injected),
        "faults_per_10_s": injected / seconds * 10,
    }
    report.print()
    sys.exit(1 if storm.violations else 0)


if __name__ == "__main__":
    main()
