"""TypeScript's compiler reads the types of packaging/js with an application that uses them, own_types.ts."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from cases import case, main

HERE = Path(__file__).parent
FOLDER = Path(os.environ["CLIENTS_FOLDER"])
OPTIONS = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom")


@case("the types fit an application")
async def types() -> None:
    package = FOLDER / "node_modules" / "edgeagent-client"
    shutil.copytree(HERE.parents[1] / "packaging" / "js", package, dirs_exist_ok=True)
    shutil.copy(HERE / "own_types.ts", FOLDER)
    compiler = await asyncio.create_subprocess_exec(
        str(FOLDER / "node_modules" / ".bin" / "tsc"),
        *OPTIONS,
        "own_types.ts",
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await compiler.communicate()
    assert compiler.returncode == 0, printed.decode()


if __name__ == "__main__":
    main()
