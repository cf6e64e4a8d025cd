"""Lakehead itself, as a file that Spark hands to the workers of a cluster."""

import zipfile
from importlib.resources import files
from pathlib import Path


def pack(folder: Path) -> Path:
    """A zip of this Lakehead in the folder, for a worker's Python to import from."""
    package = Path(str(files("lakehead")))
    packed = folder / "lakehead.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, Path(package.name) / path.relative_to(package))
    return packed
