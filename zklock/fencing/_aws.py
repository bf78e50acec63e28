"""Turns what botocore says of the guard's own requests into errors of zklock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from zklock.fencing._swap import Refused
from zklock.fencing.guard import in_doubt, refusing, unasked

_OF_THE_USER = {"ValidationException"}
_BUSY = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "SlowDown",
    "ThrottlingException",
}


@contextlib.contextmanager
def told(
    resource: str, *, lost_race: set[object] | None = None, of_the_user: bool = False
) -> Iterator[None]:
    """Raise an error of zklock for one of botocore, with that as its cause.

    ``lost_race``, if what is asked changes something: the statuses and codes with which the store
    says that another change has come before; ``Refused`` is raised for them. What botocore says of
    arguments passes. So does what the service says of them, if they are ``of_the_user``.
    """
    from botocore import exceptions  # noqa: PLC0415 - an extra

    changes = lost_race is not None
    unanswered = in_doubt if changes else unasked
    try:
        yield
    except exceptions.ClientError as error:
        answer = error.response.get("ResponseMetadata", {})
        code = error.response.get("Error", {}).get("Code")
        again = answer.get("RetryAttempts", 0) > 0
        if {code, answer.get("HTTPStatusCode")} & (lost_race or set()):
            raise Refused(error, again) from error
        # An earlier sending may have been accepted.
        if changes and again:
            raise in_doubt(resource) from error
        if code in _BUSY:
            raise unasked(resource) from error
        if answer.get("HTTPStatusCode", 0) >= 500:
            raise unanswered(resource) from error
        if of_the_user and code in _OF_THE_USER:
            raise
        raise refusing(resource, error) from error
    except exceptions.ParamValidationError:
        raise
    except (
        exceptions.HTTPClientError,
        exceptions.ConnectionError,
        exceptions.IncompleteReadError,
    ) as error:
        raise unanswered(resource) from error
    except exceptions.BotoCoreError as error:
        raise refusing(resource, error) from error
