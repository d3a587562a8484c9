"""Memory of the emulator, which reports reads of uninitialised bytes and conflicts between those who share it."""

from __future__ import annotations

from collections import Counter

import numpy as np

# Bytes whose accesses are recorded together: the smallest access.
UNIT = 2
# NaN in float32 and bfloat16.
_UNINITIALIZED = 0x7FFF
_NOBODY, _SEVERAL = -1, -2


class Memory:
    """Bytes that several agents use, such as the warps of a program.

    ``faults`` counts, by instruction, reads of uninitialised bytes and conflicts: two agents that use the same bytes in
    the same interval, for instance between two barriers, one of which changes them.
    """

    def __init__(self, size: int, faults: Counter[str], agents: dict[str, Agents]) -> None:
        units = -(-size // 16) * 16 // UNIT
        self._contents = np.full(units, _UNINITIALIZED, np.uint16)
        self._is_initialized = np.zeros(units, bool)
        self._faults = faults
        self._records = {name: _Record(units, current) for name, current in agents.items()}

    def write_bytes(self, address: int, contents: np.ndarray, is_initialized: np.ndarray) -> None:
        """Write bytes from outside, of which some pairs may still be uninitialised."""
        self._contents.view(np.uint8)[address : address + len(contents)] = contents
        self._is_initialized[address // UNIT :][: len(is_initialized)] = is_initialized

    def read_bytes(self, address: int, size: int) -> np.ndarray:
        return self._contents.view(np.uint8)[address : address + size]

    def load(self, addresses: np.ndarray, size: int, count: int, text: str) -> np.ndarray:
        """Load ``count`` unsigned integers of ``size`` bytes from each address: ``[count, addresses]``."""
        index = self._index(addresses, size, count, text)
        units = _units(index, size)
        if not self._is_initialized[units].all():
            self._faults[f"reads uninitialised memory: {text}"] += 1
        for name, record in self._records.items():
            if record.read(units):
                self._faults[f"reads what another {name} writes: {text}"] += 1
        return self._contents.view(f"u{size}")[index]

    def store(self, addresses: np.ndarray, values: np.ndarray, text: str) -> None:
        """Store unsigned integers ``[count, addresses]``."""
        index = self._index(addresses, values.itemsize, len(values), text)
        units = _units(index, values.itemsize)
        before, was_initialized = self._contents[units], self._is_initialized[units]
        self._contents.view(values.dtype)[index] = values
        self._is_initialized[units] = True
        is_changed = (self._contents[units] != before) | ~was_initialized
        for name, record in self._records.items():
            if record.write(units, is_changed):
                self._faults[f"writes what another {name} uses: {text}"] += 1

    def _index(self, addresses: np.ndarray, size: int, count: int, text: str) -> np.ndarray:
        assert not (addresses % (size * count)).any(), f"misaligned: {text}"
        assert (addresses + size * count <= self._contents.nbytes).all(), f"outside of memory: {text}"
        return (addresses // size).astype(np.int64) + np.arange(count)[:, None]


def _units(index: np.ndarray, size: int) -> np.ndarray:
    parts = size // UNIT
    return index.ravel() if parts == 1 else (index.ravel() * parts + np.arange(parts)[:, None]).ravel()


class Agents:
    """The agent that runs at present, and the interval; counted by those who run them."""

    def __init__(self) -> None:
        self.current = 0
        self.interval = 0


class _Record:
    """Who used, and who changed, each unit in the interval of its last use: an agent, nobody, or several."""

    def __init__(self, units: int, agents: Agents) -> None:
        self._agents = agents
        self._interval = np.full(units, -1, np.int64)
        self._user = np.full(units, _NOBODY, np.int64)
        self._writer = np.full(units, _NOBODY, np.int64)

    def read(self, units: np.ndarray) -> bool:
        """Record a read, and return whether another agent has changed the units."""
        self._use(units)
        return self._is_others(self._writer[units]).any()

    def write(self, units: np.ndarray, is_changed: np.ndarray) -> bool:
        """Record a write, and return whether it changes units that another agent has used."""
        users = self._use(units)
        changed = units[is_changed]
        self._writer[changed] = np.where(self._is_others(self._writer[changed]), _SEVERAL, self._agents.current)
        return bool(self._is_others(users[is_changed]).any())

    def _use(self, units: np.ndarray) -> np.ndarray:
        """Return who has used the units before, and add the current agent."""
        old = units[self._interval[units] != self._agents.interval]
        self._interval[old] = self._agents.interval
        self._user[old] = _NOBODY
        self._writer[old] = _NOBODY
        users = self._user[units]
        self._user[units] = np.where(self._is_others(users), _SEVERAL, self._agents.current)
        return users

    def _is_others(self, agents: np.ndarray) -> np.ndarray:
        return (agents != _NOBODY) & (agents != self._agents.current)
