"""Store the page that web/build.mjs built in the package, compressed, with a manifest of hashes; `make page` calls it.

python scripts/store_page.py
"""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT, STORED = ROOT / "build" / "page", ROOT / "src" / "moescale" / "web" / "static"


def store() -> None:
    """A file is left as it is where it holds these bytes: another liblzma may write them in another way."""
    manifest: dict[str, str] = {}
    for path in sorted(BUILT.iterdir()):
        data, target = path.read_bytes(), STORED / f"{path.name}.xz"
        manifest[path.name] = hashlib.sha256(data).hexdigest()
        if not target.exists() or lzma.decompress(target.read_bytes()) != data:
            target.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    (STORED / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    store()
