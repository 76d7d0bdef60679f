"""Signatures of webhooks, for both ends. Follows the Standard Webhooks specification, version 1 of its symmetric signatures.

A receiver in Python:

```python
event_id = verify_webhook(request.headers, body, secret=os.environ["CLERK_SECRET"], now=datetime.now(UTC))
if event_id not in seen:
    ...
```
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime

from phronomy_ray.errors import InvalidInputError

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
_PREFIX = "whsec_"
#: How far a receiver's clock may be from the sender's, in seconds.
TOLERANCE_S = 300.0


def signature(secret: str, event_id: str, timestamp_s: int, body: bytes) -> str:
    """The signature header: one ``v1`` signature for each of the secrets, which white space separates (two while one is replaced)."""
    signed = b".".join((event_id.encode(), str(timestamp_s).encode(), body))
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(_key(one), signed, hashlib.sha256)).decode()
        for one in secret.split()
    )


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    *,
    secret: str,
    now: datetime,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Check that a request comes from whoever has the secret. Returns the event's id, to drop repetitions by.

    Args:
        headers: of the request; their names in any case.
        body: the request's body as it came, before it is parsed.
        secret: the shared secret, or two of them with a space between while one is replaced.
        now: the present time.
        tolerance_s: how old or new the request may be.

    Raises:
        InvalidInputError: it does not (code ``webhook_signature``).
    """
    given = {name.lower(): value for name, value in headers.items()}
    event_id, text = given.get(ID_HEADER, ""), given.get(TIMESTAMP_HEADER, "")
    if not event_id or not text.isdecimal():
        raise _refused("its headers are missing")
    if abs(now.timestamp() - int(text)) > tolerance_s:
        raise _refused("it is too old, or the clocks differ")
    wanted = signature(secret, event_id, int(text), body).split()
    for one in given.get(SIGNATURE_HEADER, "").split():
        if any(hmac.compare_digest(one.encode(), other.encode()) for other in wanted):
            return event_id
    raise _refused("its signature is another one")


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(f"a secret that begins with {_PREFIX} must go on in base64") from None


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(f"this is no webhook of ours: {why}", code="webhook_signature")


__all__ = ["ID_HEADER", "SIGNATURE_HEADER", "TIMESTAMP_HEADER", "signature", "verify_webhook"]
