"""The part of `schemas/config.schema.json` that describes agents, made from the structs of the agent kinds.

Run as a program it says whether the file is stale; with `--write` it writes it: `make reference`.
"""

import json
import sys
from pathlib import Path

from viva.agents.agent_config import agents_schema
from viva.catalog import BUILT_IN
from viva.model import codec

FILE = Path(__file__).resolve().parents[1] / "src/viva/schemas/config.schema.json"


def build_text() -> str:
    schema = codec.decode(FILE.read_bytes())
    schema["$defs"]["agent"] = agents_schema(BUILT_IN["agent"])
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def is_stale() -> bool:
    return FILE.read_text(encoding="utf-8") != build_text()


if __name__ == "__main__":
    stale = is_stale()
    if stale and "--write" in sys.argv[1:]:
        FILE.write_text(build_text(), encoding="utf-8")
        print(f"wrote {FILE.name}")
    elif stale:
        sys.exit(f"{FILE.name} is stale: run `make reference`")
