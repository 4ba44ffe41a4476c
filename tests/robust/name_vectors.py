"""Names that hostile clients and repositories give to models and files."""

from __future__ import annotations

from itertools import product

_UPS = ["../", "..\\", "%2e%2e/", "..%2f", "..%5c", "....//", "..;/", "\uff0e\uff0e/", "./../", ".. /", "..\u2215"]
_TARGETS = ["etc/passwd", "outside/secret.gguf", "dev/random"]
_HEADS = ["", "org/repo/", "org/repo/a/", "models/"]
_DEVICES = ["CON", "PRN", "AUX", "NUL", "COM1", "LPT9", "con.gguf", "Nul.txt.gguf", "aux ", "CONIN$"]
_HEX = "a" * 64

TRAVERSALS = [f"{head}{up * depth}{target}" for head, up, depth, target in product(_HEADS, _UPS, (1, 6), _TARGETS)]
ABSOLUTE = [
    "/etc/passwd",
    "/etc/passwd\0.gguf",
    "/dev/random",
    "/dev/zero",
    "/dev/stdin",
    "/proc/self/environ",
    "/proc/self/mem",
    "//etc/passwd",
    "~/secret.gguf",
    "~root/secret.gguf",
    "~",
    "$HOME/secret.gguf",
    "${HOME}/secret.gguf",
    "%USERPROFILE%\\secret.gguf",
    "C:\\Windows\\win.ini",
    "C:/Windows/win.ini",
    "c:secret.gguf",
    "\\\\server\\share\\secret.gguf",
    "//server/share/secret.gguf",
    "\\\\?\\C:\\secret.gguf",
    "\\\\.\\PhysicalDrive0",
    "\\\\.\\pipe\\x",
    "file:///etc/passwd",
    "file:/etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "https://example.com/x.gguf",
    "hf://org/repo",
    "data:,x",
]
DEVICES = [f"{head}{device}" for head in ("", "org/", "org/repo/") for device in _DEVICES]
DIGESTS = [
    f"sha256:{_HEX}",
    f"sha256:{_HEX}/../x",
    f"sha256:../{_HEX}",
    "sha256:" + "A" * 64,
    "sha256:" + "a" * 63,
    "sha256:" + "a" * 65,
    f"sha256-{_HEX}",
    f"sha512:{_HEX}",
    f"SHA256:{_HEX}",
    f"@sha256:{_HEX}",
    f"org/repo@sha256:{_HEX}",
    f"blobs/sha256/{_HEX}",
]
CHARACTERS = [
    "nul\0byte",
    "new\nline",
    "carriage\rreturn",
    "escape\x1b[31m",
    "\u202efdp.gguf",
    "a\u200bb",
    "\ufeffbuiltin",
    "b\u0456iltin",
    "BUILTIN",
    "Builtin",
    "builtin ",
    " builtin",
    "builtin.",
    "builtin::$DATA",
    "builtin:latest:latest",
    "e\u0301",
    "\u00e9",
    "x" * 4096,
    "org/" + "x" * 4096,
    "org/repo/" + "x" * 4096 + ".gguf",
    "a/" * 2000,
    "." * 300,
    "-rf",
    "--help",
    "$(touch outside)",
    "`touch outside`",
    ";touch outside",
    "|touch outside",
    "*",
    "?",
    "[a-z]",
    "{a,b}",
    "",
    " ",
    ".",
    "..",
    "...",
    "/",
    "\\",
    ":",
]

NAMES = TRAVERSALS + ABSOLUTE + DEVICES + DIGESTS + CHARACTERS
# Fewer names, for tests in which each name costs nine requests.
WIRE_NAMES = TRAVERSALS[::2] + ABSOLUTE + DEVICES + DIGESTS + CHARACTERS
