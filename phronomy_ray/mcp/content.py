"""How the result of an MCP tool becomes the tool's result here.

| the server sent                                  | kept as (and shown to the model)                                     |
|--------------------------------------------------|----------------------------------------------------------------------|
| structured content, beside it text or nothing    | the structured JSON value; the text, which repeats it, is dropped    |
| text blocks only                                 | their text, joined by a line break                                   |
| nothing                                          | null                                                                 |
| anything else                                    | ``{"content": [...]}``, one mapping per block, and with structured   |
|                                                  | content also ``"structured_content"``                                |

| block           | in the list                                                                                           |
|-----------------|-------------------------------------------------------------------------------------------------------|
| text            | ``{"type": "text", "text"}``                                                                          |
| image, audio    | ``{"type", "mime_type", "bytes", "sha256"}``: size and hash instead of the data, which is not kept    |
| resource, text  | ``{"type": "resource", "uri", "mime_type", "text"}``                                                  |
| resource, blob  | ``{"type": "resource", "uri", "mime_type", "bytes", "sha256"}``                                       |
| resource_link   | ``{"type": "resource_link", "uri", "name", "mime_type", "description"}``; never fetched               |
| another type    | ``{"type": "unsupported", "block_type"}``                                                             |

A result with ``isError`` is no result but a failed call whose message is its text. Structured content is checked
against the tool's output schema where there is one; a server that promised it and sends none or another breaks the
protocol. Pure functions over the JSON that the server sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from phronomy_ray.canonical_json import JSONValue, dumps_plain, to_json_value
from phronomy_ray.definition.raw_schema import is_bounded
from phronomy_ray.errors import SerializationError, ToolError
from phronomy_ray.mcp.endpoint import McpEndpoint
from phronomy_ray.mcp.failures import TOOL_FAILED, broken

#: Most problems of one structured result that the error names.
MAX_PROBLEMS = 3
MAX_PROBLEM_CHARS = 200


def tool_value(
    endpoint: McpEndpoint, result: Mapping[str, Any], *, tool: str, output_schema: Mapping[str, Any] | None
) -> JSONValue:
    """The value of a ``tools/call`` result, by the tables of this module.

    Raises:
        ToolError: ``mcp_tool_error`` for a result with ``isError``; ``mcp_protocol`` for one that breaks the protocol.
    """
    try:
        plain: dict[str, Any] = endpoint.clean_result(to_json_value(dict(result)))
    except SerializationError as error:
        raise broken(endpoint, f"the result of {tool!r} is no JSON: {error}") from None
    blocks = plain.get("content")
    blocks = blocks if isinstance(blocks, list) else []
    if plain.get("isError"):
        text = _error_text(blocks, plain.get("structuredContent"))
        raise ToolError(text, code=TOOL_FAILED, details={"server": endpoint.name, "tool": tool})
    has_structured = "structuredContent" in plain
    structured: JSONValue = plain.get("structuredContent")
    if output_schema is not None:
        if not has_structured:
            raise broken(endpoint, f"{tool!r} promised structured content and sent none")
        _check_structured(endpoint, tool, structured, output_schema)
    parts = [_block(block) for block in blocks]
    only_text = all(part["type"] == "text" for part in parts)
    if has_structured and only_text:
        return structured
    if only_text:
        return "\n".join(str(part["text"]) for part in parts) if parts else None
    value: dict[str, JSONValue] = {"content": list(parts)}
    if has_structured:
        value["structured_content"] = structured
    return value


def _error_text(blocks: Sequence[Any], structured: Any) -> str:
    parts = [_block(block) for block in blocks]
    texts = [str(part.get("text") or f"[{part['type']}]") for part in parts]
    if not texts and structured is not None:
        texts = [dumps_plain(structured)]
    return "\n".join(texts).strip() or "the tool failed and did not say why"


def _check_structured(endpoint: McpEndpoint, tool: str, value: Any, schema: Mapping[str, Any]) -> None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator_class = validator_for(schema)
    try:
        validator_class.check_schema(schema)
        if not is_bounded(dict(schema)):
            raise SchemaError("comparing a value with it would not end")
        # an empty registry: references stay within the document, nothing is fetched
        errors = list(validator_class(schema, registry=Registry()).iter_errors(value))
    except (SchemaError, Unresolvable) as error:
        reason = f"the output schema of {tool!r} is not usable: {str(error).splitlines()[0]}"
        raise broken(endpoint, reason) from None
    if errors:
        problems = "; ".join(
            f"{error.json_path}: {error.message[:MAX_PROBLEM_CHARS]}" for error in errors[:MAX_PROBLEMS]
        )
        raise broken(endpoint, f"the result of {tool!r} does not fit its output schema: {problems}")


def _block(block: Any) -> dict[str, JSONValue]:
    if not isinstance(block, Mapping):
        return {"type": "unsupported", "block_type": type(block).__name__}
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(block.get("text"))}
    if kind in ("image", "audio"):
        return {
            "type": str(kind),
            "mime_type": _text(block.get("mimeType")),
            **_summary(block.get("data")),
        }
    if kind == "resource":
        return _resource(block.get("resource"))
    if kind == "resource_link":
        link: dict[str, JSONValue] = {"type": "resource_link", "uri": _text(block.get("uri"))}
        for wire, name in (("name", "name"), ("mimeType", "mime_type"), ("description", "description")):
            if isinstance(block.get(wire), str):
                link[name] = _text(block[wire])
        return link
    return {"type": "unsupported", "block_type": _text(kind)}


def _resource(resource: Any) -> dict[str, JSONValue]:
    if not isinstance(resource, Mapping):
        return {"type": "unsupported", "block_type": "resource"}
    kept: dict[str, JSONValue] = {
        "type": "resource",
        "uri": _text(resource.get("uri")),
        "mime_type": _text(resource.get("mimeType")),
    }
    if "blob" in resource:
        kept.update(_summary(resource["blob"]))
    else:
        kept["text"] = _text(resource.get("text"))
    return kept


def _summary(data: Any) -> dict[str, JSONValue]:
    try:
        raw = base64.b64decode(_text(data), validate=True)
    except binascii.Error:
        return {"bytes": None, "sha256": None}
    return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
