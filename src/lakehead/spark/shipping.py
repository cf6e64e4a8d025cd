"""Packs Lakehead itself into a file that Spark distributes to the workers of a cluster."""

import zipfile
from importlib.resources import files
from pathlib import Path


def pack(folder: Path) -> Path:
    """Write a zip of this Lakehead into the folder, from which a worker's Python can import it. Returns its path."""
    package = Path(str(files("lakehead")))
    packed = folder / "lakehead.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, Path(package.name) / path.relative_to(package))
    return packed
