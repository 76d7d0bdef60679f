"""The store port's contract as tests, second half: values come back whole and in order, approvals, standing rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from phronomy_ray.approvals import RuleEffect, RulesAsked, StandingRule
from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.errors import ConflictError, InvalidInputError, NotFoundError, SerializationError
from phronomy_ray.journal import ApprovalStatus, ExecutionStatus, ToolCallStatus
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, StoreFactory, owned, race

#: Values that must come back as they went in: small, nested, any plane of Unicode, controls, and over the inline limit.
ROUND_TRIPS: dict[str, Any] = {
    "null": None,
    "empty": {},
    "false": False,
    "zero": 0,
    "blank": "",
    "text": "hello",
    "number": 12.5,
    "big_integer": 2**80,
    "nested": {"b": [1, {"a": None}], "a": {"z": True}},
    "unicode": "naïve 漢字 🍸 \u202e \ufeff",
    "nul": "a\x00b",
    "controls": "".join(map(chr, range(32))),
    "like_a_token": "gAAAAABn",
    "like_sql": "'; DROP TABLE agents; --",
    "at_the_limit": "x" * 4094,
    "over_the_limit": "x" * 4095,
    "large": {"rows": [{"n": n, "t": "漢" * 50} for n in range(500)]},
}


class ContentConformance:
    """Values come back whole, wherever they were kept."""

    @pytest.mark.parametrize("name", ROUND_TRIPS)
    def test_round_trip_in_every_column(self, store_factory: StoreFactory, name: str) -> None:
        value = ROUND_TRIPS[name]
        owner = owned(store_factory())
        context = None if value is None else {"v": value}
        row = owner.start("e1", input=value, durable_context=context)
        call = samples.tool_call("e1", "alice", arguments=value, result=value, model_text=dumps(value))
        request = samples.approval(call)
        occurrence = samples.event("e1", "alice", 1, {"v": value})
        owner.append(
            value,
            new_model_calls=(samples.model_call("e1"),),
            new_tool_calls=(call,),
            new_approvals=(request,),
            events=(occurrence,),
        )
        store = store_factory()
        assert store.load_execution("e1") == row
        assert store.read_journal("alice")[0].content == value
        assert store.tool_calls("e1") == [call]
        assert store.approvals() == [request]
        assert store.events("e1") == [occurrence]
        done = owner.change(row, status=ExecutionStatus.COMPLETED, output=dumps(value))
        assert store.list_executions() == [done]

    def test_round_trip_in_every_row_of_a_large_batch(self, store_factory: StoreFactory) -> None:
        """Many rows may travel another way than one; what they say must not depend on it."""
        owner = owned(store_factory())
        owner.start("e1")
        values = list(ROUND_TRIPS.values())
        intents = tuple(
            samples.tool_call("e1", "alice", n, arguments=value) for n, value in enumerate(values)
        )
        requests = tuple(samples.approval(call) for call in intents)
        owner.append(
            new_model_calls=(samples.model_call("e1"),),
            new_tool_calls=intents,
            new_approvals=requests,
            events=tuple(samples.event("e1", "alice", n, {"v": value}) for n, value in enumerate(values, 1)),
        )
        assert owner.store.tool_calls("e1") == list(intents)
        assert owner.store.approvals(limit=1000) == list(requests)
        done = tuple(
            replace(
                call,
                status=ToolCallStatus.SUCCEEDED,
                attempt=n,
                result=value,
                model_text=dumps(value),
                error={"message": "\x00"} if n % 2 else None,
                attempts=[{"number": n, "node": "%(rows)s"}],
                started_at=START,
                ended_at=START + timedelta(microseconds=n),
            )
            for n, (call, value) in enumerate(zip(intents, values, strict=True))
        )
        decided = tuple(
            replace(item, status=ApprovalStatus.APPROVED, decided_at=START, reason=f"100% {n} :x")
            for n, item in enumerate(requests)
        )
        owner.append(*values, tool_calls=done, approvals=decided)
        store = store_factory()
        assert store.tool_calls("e1") == list(done)
        assert store.approvals(limit=1000) == list(decided)
        assert [record.content for record in store.read_journal("alice")] == values
        assert [row.payload["v"] for row in store.events("e1")] == values

    def test_a_large_update_of_a_row_that_is_not_stored_writes_nothing(
        self, store_factory: StoreFactory
    ) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        calls = tuple(samples.tool_call("e1", "alice", n) for n in range(20))
        owner.append(new_model_calls=(samples.model_call("e1"),), new_tool_calls=calls)
        done = [replace(call, status=ToolCallStatus.SUCCEEDED) for call in calls]
        done[7] = replace(done[7], tool_call_id="tc_nobody")
        with pytest.raises(ConflictError, match="1 of 20"):
            owner.append("a", tool_calls=tuple(done))
        assert owner.store.tool_calls("e1") == list(calls)

    def test_lone_surrogates_are_cleaned_and_pairs_joined(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        call = samples.tool_call("e1", "alice", tool_name="t\ud835", provider_call_id="c\x00\udfff")
        owner.append({"k\ud835": ["\ud835", "\ud83c\udf78", "\udf78" * 5000]}, new_tool_calls=(call,))
        store = store_factory()
        assert store.read_journal("alice")[0].content == {"k�": ["�", "🍸", "�" * 5000]}
        assert store.tool_calls("e1")[0].tool_name == "t�"
        assert store.tool_calls("e1")[0].provider_call_id == "c��"

    def test_ten_megabytes(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        value = "0123456789" * 1_000_000
        call = samples.tool_call("e1", "alice")
        owner.append(new_tool_calls=(call,))
        call = replace(call, status=ToolCallStatus.SUCCEEDED, result=value, model_text="cut")
        owner.append(tool_calls=(call,))
        assert store_factory().tool_calls("e1") == [call]

    @pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, b"bytes", {1, 2}])
    def test_what_is_not_json_is_a_typed_error(self, store_factory: StoreFactory, value: object) -> None:
        owner = owned(store_factory())
        with pytest.raises(SerializationError):
            owner.append(value)
        owner.append("still usable")

    def test_naive_time_is_refused(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        with pytest.raises(SerializationError):
            owner.append(now=START.replace(tzinfo=None))

    def test_named_contents(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        texts = ["You are helpful. 漢", "x" * 50_000, ""]
        contents = tuple((content_hash(text), text) for text in texts)
        owner.append(contents=contents)
        owner.append(contents=contents)
        for hash_, text in contents:
            assert store_factory().read_content(hash_) == text
        with pytest.raises(NotFoundError):
            owner.store.read_content(content_hash("other"))

    def test_agents_that_share_contents_do_not_deadlock(self, store_factory: StoreFactory) -> None:
        owners = [owned(store_factory(), name) for name in ("a", "b", "c")]
        texts = [f"shared {number}" for number in range(20)]

        def work(owner: Owner, order: int) -> None:
            for number in range(5):
                shared = [f"{text}/{number}" for text in texts][::order]
                owner.append(contents=tuple((content_hash(text), text) for text in shared))

        results = race(*(lambda o=o, d=d: work(o, d) for o, d in zip(owners, (1, -1, 1), strict=True)))
        assert results == [None] * 3

    def test_S10_stored_text_is_never_code(self, store_factory: StoreFactory) -> None:
        hostile = {
            "type": "os.system",
            "lc": 1,
            "id": ["os", "system"],
            "py/object": "os.system",
            "__class__": "subprocess.Popen",
            "args": ["touch /tmp/phronomy-owned"],
        }
        error = {"type": "os.system", "code": "x", "message": "!", "details": hostile}
        owner = owned(store_factory())
        row = owner.start("e1", input=hostile, durable_context=hostile, state=hostile, error=error)
        owner.append(hostile, events=(samples.event("e1", "alice", 1, hostile),))
        store = store_factory()
        assert store.load_execution("e1") == row
        assert store.read_journal("alice")[0].content == hostile
        assert store.events("e1")[0].payload == hostile


class ReadConformance:
    """Pages and orders."""

    def test_journal_pages(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.append(*range(1, 11))

        def page(**arguments: Any) -> list[int]:
            return [record.position for record in owner.store.read_journal("alice", **arguments)]

        assert page() == list(range(1, 11))
        assert page(after=7) == [8, 9, 10]
        assert page(before=4) == [1, 2, 3]
        assert page(after=3, before=6) == [4, 5]
        assert page(limit=2) == [1, 2]
        assert page(limit=2, newest_first=True) == [10, 9]
        assert page(before=9, limit=2, newest_first=True) == [8, 7]
        assert page(limit=0) == []
        assert owner.store.read_journal("nobody") == []
        with pytest.raises(InvalidInputError):
            page(limit=-1)

    def test_records_come_back_whole(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        records = (
            samples.record(
                1, "x", execution_id="e1", model_call_id="e1:m1", causation_id="tc_1", generation=2
            ),
            samples.record(2, None, role=None, context_candidate=False, metadata={}),
            samples.record(3, "z", execution_id="e1"),
        )
        owner.append(journal=records)
        assert owner.store.read_journal("alice") == list(records)
        assert owner.store.journal_of_execution("e1") == [records[0], records[2]]

    def test_events_after(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        events = [samples.event("e1", "alice", seq) for seq in range(1, 8)]
        owner.append(events=tuple(events))
        assert owner.store.events("e1") == events
        assert owner.store.events("e1", after=5) == events[5:]
        assert owner.store.events("e1", after=2, limit=2) == events[2:4]

    def test_approvals_oldest_first(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        requests = []
        for number, name in enumerate(("alice", "bob")):
            owner = owned(store, name)
            owner.start(f"e-{name}")
            calls = tuple(samples.tool_call(f"e-{name}", name, position) for position in range(3))
            mine = [samples.approval(call, created_at=START + timedelta(seconds=number)) for call in calls]
            mine[1] = replace(mine[1], status=ApprovalStatus.VOID)
            owner.append(new_tool_calls=calls, new_approvals=tuple(reversed(mine)))
            requests += mine
        assert store.approvals() == requests
        assert store.approvals(agent_id="bob") == requests[3:]
        assert store.approvals(execution_id="e-alice") == requests[:3]
        assert store.approvals(pending_only=True) == [
            r for r in requests if r.status is ApprovalStatus.PENDING
        ]
        assert store.approvals(limit=2) == requests[:2]

    def test_store_can_be_used_after_close(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.store.close()
        owner.append("again")
        owner.store.close()
        owner.store.close()
        assert len(owner.store.read_journal("alice")) == 1

    def test_identity_is_equal_for_handles_on_one_store(self, store_factory: StoreFactory) -> None:
        assert store_factory().identity == store_factory().identity


class ApprovalConformance:
    """What a request shows, what was decided, and what authorization changes in a call."""

    def test_a_request_comes_back_whole(self, store_factory: StoreFactory) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        call = samples.tool_call("e1", "alice", contract={"v": 1, "tool_version": "2"})
        large = {"text": "y" * 10_000}
        request = samples.approval(
            call,
            asked_by="policy",
            tool_origin="mcp",
            metadata={"server": "files", "secret": "no"},
            facts=large,
            expires_at=START + timedelta(hours=1, microseconds=1),
            fingerprint={"v": 1, "arguments": "sha256:00"},
        )
        owner.append(new_tool_calls=(call,), new_approvals=(request,))
        assert store_factory().approvals() == [request]
        assert owner.claim().approvals == (request,)
        assert store_factory().tool_calls("e1") == [call]
        decided = replace(
            request,
            status=ApprovalStatus.APPROVED,
            decided_at=START,
            decided_by="bob",
            edited_arguments=large,
            fingerprint={"v": 1, "arguments": "sha256:11"},
        )
        owner.append(approvals=(replace(decided, facts=None, expires_at=None, batch_id="other"),))
        assert store_factory().approvals() == [decided], "what was asked never changes"
        other = replace(request, status=ApprovalStatus.EXPIRED)
        owner.append(approvals=(other,))
        assert store_factory().approvals(pending_only=True) == []

    def test_authorization_may_change_a_call_and_an_outcome_may_not(
        self, store_factory: StoreFactory
    ) -> None:
        owner = owned(store_factory())
        owner.start("e1")
        call = samples.tool_call("e1", "alice", status=ToolCallStatus.AUTHORIZING)
        other = samples.tool_call("e1", "alice", 1, status=ToolCallStatus.AUTHORIZING)
        owner.append(new_tool_calls=(call, other))
        revised = replace(
            call,
            status=ToolCallStatus.INTENT,
            arguments={"q": "z" * 9000},
            requires_approval=True,
            authorization={"v": 1, "verdict": "allow", "source": "human"},
        )
        owner.append(revised_tool_calls=(revised,))
        assert owner.store.tool_calls("e1") == [revised, other]
        settled = replace(revised, status=ToolCallStatus.SUCCEEDED, result=1, attempt=1)
        owner.append(
            tool_calls=(replace(settled, arguments=None, requires_approval=False, authorization=None),)
        )
        assert owner.store.tool_calls("e1") == [settled, other]
        with pytest.raises(ConflictError):
            owner.append(revised_tool_calls=(replace(call, tool_call_id="tc_nobody"),))

    def test_authorization_of_a_large_batch(self, store_factory: StoreFactory) -> None:
        """Many rows may travel another way than one."""
        owner = owned(store_factory())
        owner.start("e1")
        calls = tuple(
            samples.tool_call("e1", "alice", n, status=ToolCallStatus.AUTHORIZING) for n in range(40)
        )
        owner.append(new_model_calls=(samples.model_call("e1"),), new_tool_calls=calls)
        revised = tuple(
            replace(
                call,
                status=ToolCallStatus.AWAITING_APPROVAL if n % 2 else ToolCallStatus.REJECTED,
                requires_approval=bool(n % 2),
                authorization={"v": 1, "facts": {"n": n, "text": "y" * (5000 if n % 3 else 1)}},
                ended_at=None if n % 2 else START,
            )
            for n, call in enumerate(calls)
        )
        requests = tuple(
            samples.approval(call, facts={"n": n}, expires_at=START if n % 4 else None)
            for n, call in enumerate(revised)
        )
        owner.append(revised_tool_calls=revised, new_approvals=requests)
        assert store_factory().tool_calls("e1") == list(revised)
        assert store_factory().approvals() == list(requests)


class RuleConformance:
    """Standing rules: scopes, ends, and who came first."""

    def rule(self, rule_id: str, **changes: Any) -> StandingRule:
        """A permission for one tool, everywhere."""
        sample = StandingRule(rule_id, RuleEffect.ALLOW, "search", "ann", START, reason="trusted 漢")
        return replace(sample, **changes)

    def test_rules_in_force_are_those_of_the_agent(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        later = START + timedelta(hours=1)
        rules = [
            self.rule("r1", created_at=START + timedelta(seconds=3)),
            self.rule("r2", agent_id="alice", effect=RuleEffect.REFUSE, created_at=START),
            self.rule(
                "r3", definition_id="sample", expires_at=later, created_at=START + timedelta(seconds=1)
            ),
            self.rule("r4", agent_id="bob"),
            self.rule("r5", definition_id="other"),
            self.rule("r6", agent_id="sample"),
            self.rule("r7", expires_at=START + timedelta(seconds=9)),
        ]
        for rule in rules:
            assert store.add_rule(rule) == rule

        def found(agent_id: str, definition_id: str, seconds: float) -> list[str]:
            now = START + timedelta(seconds=seconds)
            rules = store.rules_in_force(agent_id=agent_id, definition_id=definition_id, now=now)
            asked.append(RulesAsked(agent_id, definition_id, now))
            told.append(rules)
            return [rule.rule_id for rule in rules]

        asked: list[RulesAsked] = []
        told: list[list[StandingRule]] = []
        assert found("alice", "sample", 8) == ["r2", "r7", "r3", "r1"]
        assert found("alice", "sample", 9) == ["r2", "r3", "r1"]
        assert found("alice", "sample", 3600) == ["r2", "r1"]
        assert found("bob", "other", 10) == ["r4", "r5", "r1"]
        assert found("carol", "none", 10) == ["r1"]
        assert store.rules_of(asked) == told
        assert store.rules_of([]) == []
        assert store.rules_in_force(agent_id="alice", definition_id="sample", now=START)[0] == rules[1]
        assert sorted(store.list_rules(), key=lambda rule: rule.rule_id) == rules
        assert len(store.list_rules(limit=2)) == 2

    def test_adding_the_same_again_is_one_rule(self, store_factory: StoreFactory) -> None:
        rule = self.rule("r1", agent_id="alice")
        stores = [store_factory() for _ in range(4)]
        results = race(*(lambda s=s: s.add_rule(rule) for s in stores))
        assert results == [rule] * 4
        assert store_factory().list_rules() == [rule]
        with pytest.raises(ConflictError):
            store_factory().add_rule(replace(rule, effect=RuleEffect.REFUSE))
        assert store_factory().list_rules() == [rule]

    def test_the_first_revocation_counts(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        rule = store.add_rule(self.rule("r1"))
        ended = store.revoke_rule("r1", revoked_by="bob", now=START + timedelta(seconds=5))
        assert ended == replace(rule, revoked_by="bob", revoked_at=START + timedelta(seconds=5))
        assert store_factory().revoke_rule("r1", revoked_by="eve", now=START) == ended
        assert store.rules_in_force(agent_id="a", definition_id="d", now=START) == []
        assert store.list_rules() == [ended]
        assert store.add_rule(rule) == ended, "adding it again does not bring it back"
        with pytest.raises(NotFoundError):
            store.revoke_rule("r2", revoked_by="eve", now=START)


__all__ = [
    "ROUND_TRIPS",
    "ApprovalConformance",
    "ContentConformance",
    "ReadConformance",
    "RuleConformance",
]
