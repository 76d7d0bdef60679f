"""Exit codes of the command, and which error gives which."""

from __future__ import annotations

from enum import IntEnum

from phronomy_ray.errors import (
    AgentAlreadyExistsError,
    AgentBusyError,
    AgentParkedError,
    BackpressureError,
    ConfigurationError,
    ConflictError,
    InvalidConversationError,
    InvalidInputError,
    NotFoundError,
    PhronomyError,
    SchemaVersionError,
    StoreUnavailableError,
    WaitTimeoutError,
)


class ExitCode(IntEnum):
    """What a script may rely on; part of the public interface (`docs/guide/cli.md`)."""

    OK = 0
    #: The execution failed, was cancelled or rejected; a check found something wrong.
    FAILED = 1
    #: Wrong arguments, or a configuration that cannot be used.
    USAGE = 2
    #: The execution waits for a human and nobody can be asked here.
    NEEDS_HUMAN = 3
    #: There is no such agent, execution, approval request or call.
    NOT_FOUND = 4
    #: The state does not allow it: the agent is busy, the request was answered otherwise.
    CONFLICT = 5
    #: The cluster or the store cannot be reached, or did not answer in time.
    UNAVAILABLE = 6
    #: Interrupted by Ctrl-C; what was started goes on.
    INTERRUPTED = 130


class ClusterUnavailableError(ConfigurationError):
    """No Ray cluster answers and the command needs one."""

    default_code = "cluster_unavailable"


class AmbiguousError(ConflictError):
    """A shortened id fits several records."""

    default_code = "ambiguous"


_TABLE: tuple[tuple[type[PhronomyError], ExitCode], ...] = (
    (ClusterUnavailableError, ExitCode.UNAVAILABLE),
    (NotFoundError, ExitCode.NOT_FOUND),
    (StoreUnavailableError, ExitCode.UNAVAILABLE),
    (WaitTimeoutError, ExitCode.UNAVAILABLE),
    (ConflictError, ExitCode.CONFLICT),
    (AgentBusyError, ExitCode.CONFLICT),
    (AgentAlreadyExistsError, ExitCode.CONFLICT),
    (BackpressureError, ExitCode.CONFLICT),
    (AgentParkedError, ExitCode.CONFLICT),
    (SchemaVersionError, ExitCode.USAGE),
    (ConfigurationError, ExitCode.USAGE),
    (InvalidInputError, ExitCode.USAGE),
    (InvalidConversationError, ExitCode.USAGE),
)


def exit_code_for(error: PhronomyError) -> ExitCode:
    """The exit code of a command that ended with `error`."""
    return next((code for kind, code in _TABLE if isinstance(error, kind)), ExitCode.FAILED)


__all__ = ["AmbiguousError", "ClusterUnavailableError", "ExitCode", "exit_code_for"]
