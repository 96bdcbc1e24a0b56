"""JSON command headers as any client may write them: the slow way, for both kernels.

Clients differ. The C++ and the Node client send numbers and booleans where the Java client sends texts, so every value
of `extFields` is read as the text that Java would have sent.
"""

from __future__ import annotations

import json
from typing import Any

from mqlake.errors import BadFrame

LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST"),
    "NODE_JS",
)
"""A binary header names a language by its place here."""
OTHER_LANGUAGE = "OTHER"
INT32 = range(-(2**31), 2**31)

HeaderParts = tuple[int, str, int, int, int, str | None, dict[str, str]]
"""Code, language, version, opaque, flag, remark, fields."""


def decode_json_header(data: bytes) -> HeaderParts:
    """Return the parts of a JSON header; BadFrame if it is none."""
    try:
        header = json.loads(data.decode("utf-8"), strict=False)
    except (ValueError, RecursionError) as error:
        raise BadFrame("header", f"no JSON ({error})", "a JSON object in UTF-8") from None
    if not isinstance(header, dict):
        raise BadFrame("header", f"JSON of the type {type(header).__name__}", "a JSON object")
    if "code" not in header:
        raise BadFrame("header", "no code", "a request or response code")
    fields = header.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise BadFrame("extFields", f"JSON of the type {type(fields).__name__}", "a JSON object")
    remark, language = header.get("remark"), header.get("language")
    return (
        _number("code", header["code"]),
        OTHER_LANGUAGE if language is None else _text(language),
        _number("version", header.get("version", 0)),
        _number("opaque", header.get("opaque", 0)),
        _number("flag", header.get("flag", 0)),
        None if remark is None else _text(remark),
        {_text(name): _text(value) for name, value in (fields or {}).items() if value is not None},
    )


def _number(name: str, value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:20])
    if isinstance(value, bool) or not isinstance(value, int) or value not in INT32:
        raise BadFrame(name, repr(value)[:80], "a whole number of 32 bits")
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        value = str(value) if isinstance(value, int) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        value.encode()
    except UnicodeEncodeError:  # a surrogate without its partner: Java has no UTF-8 for it either
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(value)
