"""Files with a checksum inside, by which damage is seen: torch's archives, which others can still read, and JSON."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch

_DIGITS = 64
KEY = "checksum"


def archive(content: Any) -> bytes:
    """The bytes of ``torch.save``, with their SHA-256 as the comment of the ZIP archive that they are.

    Example::

        >>> torch.load(io.BytesIO(archive({"a": torch.ones(2)})))
        {'a': tensor([1., 1.])}
    """
    # Through memory, as an error inside torch.save's own file writer hides the system's.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode()
    # An archive ends with the length of its comment, and the comment.
    return body[:-2] + len(digest).to_bytes(2, "little") + digest


def read_archive(path: Path) -> Any:
    """What :func:`archive` held; a ValueError where it is damaged, or something else."""
    content = path.read_bytes()
    body, digest = content[: -_DIGITS - 2] + b"\0\0", content[-_DIGITS:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum does not match")
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    # What is whole and not ours can fail in any way.
    except Exception as error:
        raise ValueError(f"it cannot be read ({type(error).__name__})") from error


def parse_json(content: bytes) -> Any:
    """Parse JSON; a ValueError where it is damaged or nested too deeply, which Python itself tells by another error."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def packed(content: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with its own checksum."""
    return {**content, KEY: _digest(content)}


def unpacked(content: Any) -> dict[str, Any]:
    """What :func:`packed` was given; a ValueError where it is damaged, or something else.

    Example::

        >>> unpacked(packed({"lr": 0.1}))
        {'lr': 0.1}
        >>> unpacked({**packed({"lr": 0.1}), "lr": 0.2})
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
