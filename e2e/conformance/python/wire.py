"""The side of a driver that talks to the tests: asks come in on stdin and replies go out on stdout, one JSON object a line."""

import base64
import json
import os
import sys
import traceback

BOOTSTRAP = os.environ["LEAT_BOOTSTRAP"]
PATIENCE = 30  # seconds that an operation may take


class NotOffered(Exception):
    """The client has no way to do what was asked."""


class Record:
    """One record of an ask."""

    def __init__(self, fields):
        self.key = decode(fields["key"])
        self.value = decode(fields["value"])
        self.headers = [(h["key"], decode(h["value"])) for h in fields["headers"] or []]
        self.timestamp = fields["timestamp"] or None


def decode(text):
    return None if text is None else base64.b64decode(text)


def encode(data):
    return None if data is None else base64.b64encode(data).decode()


def tell(records):
    """The records of a reply, from what either client makes of a record."""
    return [
        {
            "key": encode(r.key),
            "value": encode(r.value),
            "headers": [{"key": key, "value": encode(value)} for key, value in r.headers],
            "timestamp": r.timestamp,
            "partition": r.partition,
            "offset": r.offset,
        }
        for r in records
    ]


def asks():
    """What is asked, until stdin ends."""
    for line in sys.stdin:
        yield json.loads(line)


def reply(fields):
    print(json.dumps(fields), flush=True)


def failure(error):
    """The reply for what an operation raised."""
    if isinstance(error, NotOffered):
        return {"not_offered": str(error)}
    traceback.print_exception(error, file=sys.stderr)
    # The errors that a broker names carry Kafka's name for it.
    name = getattr(error, "message", None) or type(error).__name__
    return {"error": f"{name}: {error}"}
