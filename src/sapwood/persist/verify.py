"""What is wrong with the contents of a store: read from its values, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.errors import StoreError
from sapwood.persist.api import Store
from sapwood.persist.manifest import (
    BLOB,
    ENTRY,
    blob_name,
    decode_manifest,
    entry_name,
)

__all__ = ["Finding", "verify"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and with what."""

    name: str
    what: str


def verify(store: Store) -> list[Finding]:
    """Return what is damaged, misnamed or incomplete, by name; none is good.

    Reads every value: give it a store that is opened to be read only, where what is
    wrong is to stay where it is. Raises OSError where the store cannot be read.
    """
    findings, blobs, named = [], set(), {}
    for name in sorted(item.name for item in store.scan()):
        try:
            value = store.get(name)
            if value is None:
                continue
            if name.startswith(BLOB):
                if blob_name(value) != name:
                    findings.append(Finding(name, "holds other contents"))
                blobs.add(name)
            elif name.startswith(ENTRY):
                manifest = decode_manifest(value)
                if entry_name(manifest.key.digest) != name:
                    findings.append(Finding(name, "is the manifest of another key"))
                named[name] = {part.blob for part in manifest.parts}
        except StoreError as error:
            findings.append(Finding(name, str(error)))
    findings += [
        Finding(name, f"names {blob}, which is not there")
        for name, wanted in named.items()
        for blob in sorted(wanted - blobs)
    ]
    return sorted(findings, key=lambda finding: finding.name)
