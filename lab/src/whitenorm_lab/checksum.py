"""Files that contain their own checksum, so that damage is detected: ``torch.save`` archives and JSON objects."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch

_DIGITS = 64
KEY = "checksum"


def to_archive(content: Any) -> bytes:
    """Return the bytes of ``torch.save``, with their SHA-256 as the comment of the ZIP archive.

    ``torch.load`` reads them as well.

    Example::

        >>> torch.load(io.BytesIO(to_archive({"a": torch.ones(2)})))
        {'a': tensor([1., 1.])}
    """
    # Through memory, because torch.save's own file writer hides the operating system's errors.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode()
    # A ZIP archive ends with the length of its comment and the comment.
    return body[:-2] + len(digest).to_bytes(2, "little") + digest


def read_archive(path: Path) -> Any:
    """Return the content of a file written by :func:`to_archive`; raise ValueError if it is damaged or another file."""
    content = path.read_bytes()
    body, digest = content[: -_DIGITS - 2] + b"\0\0", content[-_DIGITS:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum does not match")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    # An undamaged file of another program can fail in any way.
    except Exception as error:
        raise ValueError(f"it cannot be read ({type(error).__name__})") from error


def parse_json(content: bytes) -> Any:
    """Parse JSON; raise ValueError also if it is nested too deeply, where Python raises RecursionError."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def add_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum added."""
    return {**content, KEY: _digest(content)}


def verify_checksum(content: Any) -> dict[str, Any]:
    """Return the argument of :func:`add_checksum`; raise ValueError if it has changed or has no checksum.

    Example::

        >>> verify_checksum(add_checksum({"lr": 0.1}))
        {'lr': 0.1}
        >>> verify_checksum({**add_checksum({"lr": 0.1}), "lr": 0.2})
        Traceback (most recent call last):
        ValueError: its checksum does not match
    """
    if not isinstance(content, dict) or KEY not in content:
        raise ValueError("it has no checksum")
    rest = {name: value for name, value in content.items() if name != KEY}
    if content[KEY] != _digest(rest):
        raise ValueError("its checksum does not match")
    return rest


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
