"""What Schemathesis has to know of Leat: topics and groups that are there, and answers that have an end.

Names and positions are changed by a checksum of what was generated, so that a seed makes the same requests again.
"""

import zlib

import schemathesis

# Made by the test before the run. Where a name is changed is up to its checksum: most requests are for what is there, and some
# for what the generator made up.
TOPICS = ["fuzz", "fuzz-compact"]
GROUPS = ["fuzz-group", "fuzz/group é"]


def pick(text, names):
    n = zlib.crc32(str(text).encode("utf-8", "surrogatepass")) % (len(names) * 2)
    return names[n] if n < len(names) else text


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if path_parameters:
        if "topic" in path_parameters and context.operation.method != "delete":
            path_parameters["topic"] = pick(path_parameters["topic"], TOPICS)
        if "group" in path_parameters:
            path_parameters["group"] = pick(path_parameters["group"], GROUPS)
        for name, value in path_parameters.items():
            # A head of more than 64 KiB is refused by net/http as plain text, before it is a request.
            if isinstance(value, str):
                path_parameters[name] = value[:1000]
        if isinstance(path_parameters.get("partition"), int):
            path_parameters["partition"] = pick(path_parameters["partition"], [0, 1])
    return path_parameters


@schemathesis.hook
def map_query(context, query):
    # A stream has no end, and a wait keeps the run from its work; the tests of streams and of long polls have both.
    if query:
        if str(query.get("stream")).lower() == "true":
            query.pop("stream")
        query.pop("wait", None)
    return query


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("wait_ms"), int) and body["wait_ms"] > 50:
        body["wait_ms"] = 50
    return body


@schemathesis.hook
def before_call(context, case, kwargs):
    headers = case.headers
    if headers is None:
        return
    for name in list(headers):
        if name.lower() == "prefer" or (name.lower() == "accept" and "event-stream" in str(headers[name])):
            del headers[name]


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def lines(context, value):
    """The contract says of a sequence that it is text; some of the text made up becomes values of records."""
    if isinstance(value, bytes):
        return value
    text = str(value)
    if zlib.crc32(text.encode("utf-8", "surrogatepass")) % 2:
        text = "".join('{"value":%d,"key":"k"}\n' % (i % 100) for i in range(len(text) % 50 + 1))
    return text.encode("utf-8", "surrogatepass")
