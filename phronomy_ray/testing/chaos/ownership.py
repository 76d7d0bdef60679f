"""Whether every agent had one owner at a time and has lost nothing, by the word of the witness. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from phronomy_ray.testing.chaos.witness import RecordChange, RootChange, Testimony, Verb


def check_testimony(seen: Testimony, stored: Mapping[str, Sequence[int]]) -> list[str]:
    """What is wrong, in words.

    Args:
        seen: what the witness saw.
        stored: the journal positions of each agent as they are stored now.
    """
    roots: dict[str, list[RootChange]] = defaultdict(list)
    records: dict[str, list[RecordChange]] = defaultdict(list)
    for root in seen.roots:
        roots[root.agent_id].append(root)
    for record in seen.records:
        records[record.agent_id].append(record)
    found = [
        f"{agent_id}: stored, and the witness has not seen it" for agent_id in stored.keys() - roots.keys()
    ]
    for agent_id, changes in sorted(roots.items()):
        found += check_roots(agent_id, changes)
        found += check_records(agent_id, changes, records[agent_id], stored.get(agent_id, ()))
    return found


def check_roots(agent_id: str, changes: Sequence[RootChange]) -> list[str]:
    """Each change builds on the one before; epochs only grow, and only by a claim; a commit is one of the epoch in force, its id is
    new and its positions follow.
    """
    found = []
    for before, after in itertools.pairwise(changes):
        was = (before.epoch, before.revision, before.position)
        if (after.old_epoch, after.old_revision, after.old_position) != was:
            found.append(f"{agent_id}: a change does not build on the one before: {before} {after}")
    newest = 0
    ids: Counter[str] = Counter()
    for change in changes:
        if change.epoch < newest:
            found.append(f"{agent_id}: the epoch went back from {newest} to {change.epoch}")
        newest = max(newest, change.epoch)
        if change.position < change.old_position:
            found.append(f"{agent_id}: the journal went back from {change.old_position} to {change.position}")
        if change.old_revision is None:
            continue
        if change.revision == change.old_revision:
            if change.position != change.old_position:
                found.append(f"{agent_id}: the journal grew without a commit: {change}")
            continue
        if change.revision != change.old_revision + 1:
            found.append(f"{agent_id}: revision {change.revision} follows {change.old_revision}")
        if change.epoch != change.old_epoch:
            found.append(f"{agent_id}: a commit has changed the epoch: {change}")
        ids[change.commit_id or ""] += 1
        if _epoch_of(change.commit_id) != newest:
            found.append(f"{agent_id}: {change.commit_id} was committed after epoch {newest} had begun")
    found += [f"{agent_id}: {name} was committed {count} times" for name, count in ids.items() if count > 1]
    return found


def check_records(
    agent_id: str, changes: Sequence[RootChange], records: Sequence[RecordChange], stored: Sequence[int]
) -> list[str]:
    """Each position that was ever committed was written once, by the owner of its commit, and is there; epochs grow with positions."""
    found = []
    written = Counter(record.position for record in records if record.verb is Verb.INSERT)
    for position, count in written.items():
        if count > 1:
            found.append(f"{agent_id}: position {position} was written {count} times")
    for record in records:
        if record.verb is not Verb.INSERT:
            found.append(
                f"{agent_id}: position {record.position} was lost or changed afterwards: {record.verb}"
            )
    epochs = {record.position: record.epoch for record in records if record.verb is Verb.INSERT}
    for (earlier, its), (later, epoch) in itertools.pairwise(sorted(epochs.items())):
        if epoch < its:
            found.append(
                f"{agent_id}: epoch {its} wrote position {earlier}, and epoch {epoch} position {later}"
            )
    for change in changes:
        for position in range(change.old_position + 1, change.position + 1):
            if position not in epochs:
                found.append(f"{agent_id}: position {position} was committed and never written")
            elif change.old_epoch is not None and epochs[position] != change.epoch:
                found.append(
                    f"{agent_id}: position {position} is of epoch {epochs[position]}, its commit of {change.epoch}"
                )
    last = changes[-1].position if changes else 0
    if list(stored) != list(range(1, last + 1)):
        missing = sorted(set(range(1, last + 1)) ^ set(stored))
        found.append(f"{agent_id}: the journal has gaps, repeats or strangers at {missing[:10]}")
    return found


def _epoch_of(commit_id: str | None) -> int | None:
    """The epoch that a commit's id names."""
    parts = (commit_id or "").rsplit(":", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None
