"""Every error crosses a process border and the store and stays what it was."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from ray import cloudpickle

from phronomy_ray import errors
from phronomy_ray.canonical_json import dumps, loads
from phronomy_ray.errors import MAX_CAUSES, MAX_MESSAGE_CHARS, ErrorRecord, PhronomyError, RemoteError

CLASSES = sorted(
    (
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, BaseException) and cls.__module__ == errors.__name__
    ),
    key=lambda cls: cls.__name__,
)
each_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def _raised(error: PhronomyError, cause: BaseException) -> PhronomyError:
    try:
        raise error from cause
    except PhronomyError as caught:
        return caught


def test_there_are_errors_and_one_root() -> None:
    assert len(CLASSES) > 30
    assert all(issubclass(cls, PhronomyError) for cls in CLASSES)


def test_codes_are_stable_words_and_unique() -> None:
    codes = [cls.default_code for cls in CLASSES]
    assert sorted(codes) == sorted(set(codes))
    assert all(code.isidentifier() and code == code.lower() for code in codes)
    assert all("default_code" in vars(cls) for cls in CLASSES)


@each_class
def test_without_arguments_it_says_what_it_means(cls: type[PhronomyError]) -> None:
    error = cls()
    assert error.message == (cls.__doc__ or "").strip().split("\n")[0] != ""
    assert (error.code, error.details) == (cls.default_code, {})


@each_class
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "ray"])
def test_it_survives_pickling(cls: type[PhronomyError], pickler: Any) -> None:
    error = cls("what happened", code="special", details={"agent_id": "a", "limit": 3})
    back = pickler.loads(pickler.dumps(error))
    assert type(back) is cls
    assert (str(back), back.code, back.details, back.retryable) == (
        "what happened",
        "special",
        {"agent_id": "a", "limit": 3},
        cls.retryable,
    )


@each_class
def test_it_survives_the_store_with_class_code_and_causes(cls: type[PhronomyError]) -> None:
    inner = _raised(
        errors.StoreUnavailableError("no database", code="refused"), OSError("connection refused")
    )
    error = _raised(cls("what happened", code="special", details={"agent_id": "a"}), inner)

    wire = loads(dumps(ErrorRecord.from_exception(error).to_wire()))
    back = ErrorRecord.from_wire(wire).to_exception()

    assert type(back) is cls
    assert (back.message, back.code, back.details) == ("what happened", "special", {"agent_id": "a"})
    cause = back.__cause__
    assert type(cause) is errors.StoreUnavailableError
    assert (cause.message, cause.code) == ("no database", "refused")
    root = cause.__cause__
    assert isinstance(root, RemoteError)
    assert root.type_name.endswith("OSError")
    assert "connection refused" in root.message


def test_a_record_is_bounded() -> None:
    error: BaseException = ValueError("x" * 10 * MAX_MESSAGE_CHARS)
    for number in range(3 * MAX_CAUSES):
        error = _raised(PhronomyError(str(number)), error)
    record = ErrorRecord.from_exception(error)
    assert len(record.causes) == MAX_CAUSES
    assert (
        len(ErrorRecord.from_exception(ValueError("x" * 10 * MAX_MESSAGE_CHARS)).message) <= MAX_MESSAGE_CHARS
    )


def test_a_circle_of_causes_ends() -> None:
    one, two = PhronomyError("one"), PhronomyError("two")
    one.__cause__, two.__cause__ = two, one
    assert [cause.message for cause in ErrorRecord.from_exception(one).causes] == ["two"]


def test_an_error_of_another_class_is_kept_by_name_and_nothing_is_imported() -> None:
    record = ErrorRecord.from_wire({"type": "os.system", "code": "x", "message": "rm"})
    back = record.to_exception()
    assert type(back) is RemoteError
    assert back.type_name == "os.system"


def test_an_exception_whose_text_raises_can_be_recorded() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    record = ErrorRecord.from_exception(Broken())
    assert "SystemExit" in record.message
    assert record.type.endswith("Broken")
