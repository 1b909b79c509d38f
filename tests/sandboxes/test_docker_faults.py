"""Whose fault it is that an image cannot be had, by what daemons and tools say."""

from __future__ import annotations

import pytest

from pytest_harbor.sandboxes.docker.dockerfile import needs_buildkit
from pytest_harbor.sandboxes.docker.faults import is_final_build, is_final_pull
from pytest_harbor.sandboxes.docker.pull import PullProgress, split_name

NOT_TO_BE_HAD = [
    "manifest for debian:nope not found: manifest unknown: manifest unknown",
    (
        "pull access denied for nope, repository does not exist or may require "
        "'docker login': denied: requested access to the resource is denied"
    ),
    "Error response from daemon: unauthorized: authentication required",
    'Get "https://r.example/v2/x/manifests/1": no basic auth credentials',
    "no matching manifest for linux/amd64 in the manifest list entries",
    "invalid reference format: repository name must be lowercase",
    'Get "https://127.0.0.1:5000/v2/": http: server gave HTTP response to HTTPS client',
    'Get "https://r.example/v2/": x509: certificate signed by unknown authority',
    "docker.io/library/nope:1: not found",
    "error parsing HTTP 404 response body: invalid character '<' looking for value",
]
NO_ANSWER = [
    (
        'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on '
        "10.0.0.2:53: no such host"
    ),
    'Get "https://r.example/v2/": dial tcp 10.1.1.1:443: connect: connection refused',
    'Get "https://r.example/v2/": dial tcp 10.1.1.1:443: i/o timeout',
    'Get "https://r.example/v2/": net/http: TLS handshake timeout',
    (
        'Get "https://r.example/v2/": net/http: request canceled while waiting for '
        "connection (Client.Timeout exceeded while awaiting headers)"
    ),
    'Get "http://127.0.0.1:5000/v2/x/manifests/1": EOF',
    "unexpected EOF",
    "read tcp 10.0.0.1:4->10.0.0.2:443: read: connection reset by peer",
    "received unexpected HTTP status: 500 Internal Server Error",
    "error parsing HTTP 429 response body: toomanyrequests",
    "toomanyrequests: You have reached your pull rate limit. unauthorized: sign in",
    "filesystem layer verification failed for digest sha256:abc",
    "failed to register layer: write /x: no space left on device",
    "something that nobody has seen before",
]


@pytest.mark.parametrize("text", NOT_TO_BE_HAD)
def test_a_pull_that_fails_again(text):
    assert is_final_pull(text)


@pytest.mark.parametrize("text", NO_ANSWER)
def test_a_pull_that_may_do_better(text):
    assert not is_final_pull(text)


COMMAND = "The command '/bin/sh -c make' returned a non-zero code: 2"
KIT_COMMAND = (
    'failed to solve: process "/bin/sh -c make" did not complete successfully: '
    "exit code: 100"
)
FINAL_BUILDS = [
    (COMMAND, "make: *** No rule to make target 'all'. Stop."),
    (KIT_COMMAND, "E: Unable to locate package cowsaay"),
    (COMMAND, "E: Failed to fetch http://deb/x.deb 404 Not Found [IP: 1.2.3.4 80]"),
    (COMMAND, "ERROR: No matching distribution found for reqests==99"),
    ("dockerfile parse error line 3: unknown instruction: EOF", ""),
    ("COPY failed: file not found in build context: stat x: file does not exist", ""),
    ("failed to solve: failed to compute cache key: /x: not found", ""),
    ("the --mount option requires BuildKit", ""),
    ("manifest for nope:1 not found: manifest unknown: manifest unknown", ""),
    ("failed to solve: nope:1: docker.io/library/nope:1: not found", ""),
]
OUTAGE_BUILDS = [
    (COMMAND, "Temporary failure resolving 'deb.debian.org'"),
    (COMMAND, "curl: (6) Could not resolve host: example.org"),
    (KIT_COMMAND, "W: Failed to fetch ... Could not connect to deb.debian.org:80"),
    (COMMAND, "npm error code EAI_AGAIN"),
    (COMMAND, "ReadTimeoutError(HTTPSConnectionPool: Read timed out. (timeout=15))"),
    (COMMAND, "NewConnectionError: Failed to establish a new connection: [Errno 111]"),
    (COMMAND, "E: Failed to fetch http://deb/x  503  Service Unavailable"),
    (COMMAND, "E: ... Hash Sum mismatch"),
    (COMMAND, "wget: bad address 'example.org'"),
    (COMMAND, "cp: error writing '/x': No space left on device"),
    (
        "failed to solve: debian:12: failed to do request: Head: dial tcp: i/o timeout",
        "",
    ),
    ("Get https://registry-1.docker.io/v2/: dial tcp: no such host", ""),
    ("received unexpected HTTP status: 503 Service Unavailable", ""),
    ("failed to register layer: no space left on device", ""),
]


@pytest.mark.parametrize(("failure", "line"), FINAL_BUILDS)
def test_a_build_that_fails_again(failure, line):
    assert is_final_build(failure, ["Step 1/2 : FROM x", line, "the end"])


@pytest.mark.parametrize(("failure", "line"), OUTAGE_BUILDS)
def test_a_build_that_may_do_better(failure, line):
    assert not is_final_build(failure, ["Step 1/2 : FROM x", line, "the end"])


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("FROM x\nRUN --mount=type=cache,target=/c make\n", ("RUN --mount",)),
        ("FROM x\nRUN --network=none make", ("RUN --network",)),
        ("FROM x\ncopy --chmod=755 --link a \\\n  b", ("COPY --chmod", "COPY --link")),
        ("FROM x\nCOPY --chown=1 --link a b", ("COPY --link",)),
        ("FROM x\nRUN <<EOF\necho\nEOF\n", ("RUN <<EOF",)),
        ("FROM x\nRUN cat <<-'END' > /x\nhi\nEND\n", ("RUN <<-'END",)),
        ("FROM x\nADD --checksum=sha256:1 http://x /x", ("ADD --checksum",)),
        ("# syntax=docker/dockerfile:1\nFROM x", ("# syntax=docker/dockerfile:1",)),
        (
            "# escape=`\n# syntax = a/b\nFROM x\nRUN --mount=type=bind a\nRUN --mount=b a",
            ("# syntax=a/b", "RUN --mount"),
        ),
        ("FROM x\n# syntax=docker/dockerfile:1\n", ()),
        ("FROM x\n# RUN --mount=type=cache make\n", ()),
        ("FROM x\nRUN make --mount=x && test 1 -lt 2 && echo $((1 << 2))\n", ()),
        ("FROM --platform=linux/amd64 x\nCOPY --from=a --chown=1:1 b c\n", ()),
        ("FROM x\nRUN a \\\n# comment\n --mount=x\nENV RUN=--mount\n", ()),
    ],
)
def test_what_needs_buildkit(text, needs):
    assert needs_buildkit(text) == needs


def test_the_state_of_a_pull():
    progress = PullProgress("debian:12")
    assert progress.line() == "pulling image debian:12"
    for event in (
        {"status": "Pulling from library/debian", "id": "12"},
        {"status": "Pulling fs layer", "id": "a", "progressDetail": {}},
        {"status": "Already exists", "id": "b"},
        {
            "status": "Downloading",
            "id": "a",
            "progressDetail": {"current": 41_500_000, "total": 120_000_000},
        },
    ):
        progress.feed(event)
    assert progress.line() == "pulling image debian:12: 1 of 2 layers, 42 MB"
    progress.feed({"status": "Download complete", "id": "a"})
    progress.feed({"status": "Extracting", "id": "a", "progressDetail": {"current": 1}})
    assert progress.line() == "pulling image debian:12: 2 of 2 layers, 42 MB"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("debian", ("debian", "latest")),
        ("debian:12", ("debian", "12")),
        ("localhost:5000/a/b", ("localhost:5000/a/b", "latest")),
        ("localhost:5000/a/b:1", ("localhost:5000/a/b", "1")),
        ("debian@sha256:abc", ("debian@sha256:abc", None)),
    ],
)
def test_the_parts_of_a_name(name, parts):
    assert split_name(name) == parts
