"""The entries of the contract, by family."""

from __future__ import annotations

from ..registry import Entry
from . import attention, moss, networks, noise, pictures, positions, quantised, sampling

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for family in (positions, networks, attention, sampling, noise, quantised, pictures, moss)
    for entry in family.ENTRIES
}
