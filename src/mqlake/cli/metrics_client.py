"""Reads the metrics of a broker: Prometheus' text format over HTTP."""

from __future__ import annotations

import re
from collections import defaultdict

from mqlake.config import parse_address
from mqlake.errors import InvalidConfig

TIMEOUT_S = 10.0
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def parse_metrics(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of each metric by their labels' values, in the order of the labels' names."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for line in text.splitlines():
        sample = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if sample is not None:
            labels = sorted(_LABEL.findall(sample[2] or ""))
            found[sample[1]][tuple(_plain(value) for _, value in labels)] = float(sample[3])
    return found


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], text)


def fetch_metrics(endpoint: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Ask a broker's metrics address, HOST:PORT."""
    import http.client

    host, port = parse_address("endpoint", endpoint.removeprefix("http://").partition("/")[0])
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise InvalidConfig("endpoint", endpoint, f"no metrics there: {error!r}") from None
    finally:
        connection.close()
    if answer.status != 200 or "mqlake_topic_queues" not in text:
        raise InvalidConfig("endpoint", endpoint, "no mqlake broker's metrics there; see serve --metrics")
    return parse_metrics(text)
