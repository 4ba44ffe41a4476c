"""Makes edgeagent's own code take its branches for another platform, in every process that it starts.

At start Python imports `sitecustomize` from the folder `darwin` or `win32` beside this file. Only edgeagent's modules
are changed, as they are imported: each `sys.platform` and `os.name` in them becomes a constant. The libraries see the
real machine.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.machinery
import importlib.util
import os
import socket
import subprocess
import sys
import types
from collections.abc import Sequence
from typing import Any

_OS_NAMES = {"darwin": "posix", "win32": "nt"}


def rename(platform: str) -> None:
    """Make edgeagent's modules see `platform` as the name of their platform."""
    if platform == "win32":
        _lend_windows_names()
    sys.meta_path.insert(0, _Finder({("sys", "platform"): platform, ("os", "name"): _OS_NAMES[platform]}))


class _Finder:
    def __init__(self, constants: dict[tuple[str, str], str]) -> None:
        self._constants = constants

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        if name.partition(".")[0] != "edgeagent":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader, self._constants)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, loader: importlib.machinery.SourceFileLoader, constants: dict[tuple[str, str], str]) -> None:
        super().__init__(loader.name, loader.path)
        self._constants = constants

    def get_code(self, fullname: str) -> types.CodeType | None:
        """Compile a module that asks for the platform from its source: cached bytecode asks this machine."""
        source = self.get_data(self.path)
        if not any(f"{owner}.{name}".encode() in source for owner, name in self._constants):
            return super().get_code(fullname)
        tree = ast.parse(source, self.path)
        tree = ast.fix_missing_locations(_Constants(self._constants).visit(tree))
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Constants(ast.NodeTransformer):
    def __init__(self, constants: dict[tuple[str, str], str]) -> None:
        self._constants = constants

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            constant = self._constants.get((node.value.id, node.attr))
            if constant is not None:
                return ast.copy_location(ast.Constant(constant), node)
        return self.generic_visit(node)


def _lend_windows_names() -> None:
    """Provide the functions that the Windows branches call, implemented with this system's own."""
    import fcntl

    def locking(descriptor: int, mode: int, num_bytes: int) -> None:
        assert (mode, num_bytes) == (2, 1)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    class Library(ctypes.CDLL):
        def __init__(self, name: str | None, *arguments: Any, **options: Any) -> None:
            super().__init__(None if name == "msvcrt" else name, *arguments, **options)

    msvcrt = types.ModuleType("msvcrt")
    vars(msvcrt).update(locking=locking, LK_NBLCK=2)
    sys.modules["msvcrt"] = msvcrt
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # imports of it fail, as they do there
    ctypes.CDLL = Library  # type: ignore[misc]
    # The only function called leaves the folder's name empty, as when Windows knows none.
    shell = types.SimpleNamespace(SHGetFolderPathW=lambda *_: 0)
    vars(ctypes)["windll"] = types.SimpleNamespace(shell32=shell)
    vars(socket)["SO_EXCLUSIVEADDRUSE"] = socket.SO_REUSEADDR
    vars(subprocess)["CREATE_NEW_PROCESS_GROUP"] = 0
    # Windows ends a process without calling a handler; there `terminate` calls TerminateProcess.
    del os.sched_getaffinity
