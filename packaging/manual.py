"""Write what a package has for the shell, from the commands' own help: the man page and the completion scripts.

`python packaging/manual.py FOLDER` writes edgeagent.1, edgeagent.bash, _edgeagent (zsh) and edgeagent.fish.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from typer._completion_shared import get_completion_script

sys.path.insert(0, str(Path(__file__).resolve().parent))
from reference import described

from edgeagent import __version__
from edgeagent.cli.commands import COMMANDS, COMPLETE_VARIABLE
from edgeagent.config_sources import Option, declared_options

OPENING = """\
.TH EDGEAGENT 1 "" "edgeagent {version}" "User Commands"
.SH NAME
edgeagent \\- run language models on this machine
.SH SYNOPSIS
.B edgeagent
.I COMMAND
.RI [ ARGUMENTS ]
.SH DESCRIPTION
.B edgeagent serve
is a daemon that runs GGUF models and answers over HTTP and WebSockets.
The other commands talk to it, or care for models, settings and the service.
.B edgeagent run builtin
answers with the small bundled model, and needs no download and no daemon.
"""
CLOSING = """\
.SH EXIT STATUS
0 success, 1 failure, 2 a wrong argument or setting, 130 interrupted.
.B edgeagent serve
also exits with 3 if the port is taken, and with 4 if another daemon uses the state folder.
.SH FILES
.TP
.I ~/.config/edgeagent/config.toml
settings of a user;
.I /etc/edgeagent/config.toml
has those of the system service
.TP
.I ~/.local/state/edgeagent
token, stored responses and cached prompts of a user;
.I /var/lib/edgeagent
has those of the system service
.TP
.I /etc/edgeagent/policy.toml
what users of this machine may do
.SH SEE ALSO
.BR systemctl (1),
.BR journalctl (1)
"""


def man_page(version: str = __version__) -> str:
    """Return edgeagent.1: every command with its arguments, and every option of the settings."""
    lines = [OPENING.format(version=version), ".SH COMMANDS\n"]
    for name in COMMANDS:
        for command in described(name):
            lines.append(f'.SS "{_plain(command.usage)}"\n')
            lines.append(".PP\n".join(_paragraphs(command.help)))
            for argument, text in command.rows:
                lines.append(f".TP\n.B {_plain(argument)}\n{_plain(text)}\n")
            if command.has_all_options:
                lines.append(".PP\nIt also takes each option of the section OPTIONS as a flag.\n")
    lines.append(".SH OPTIONS\nA flag, an environment variable or a line of config.toml sets an option.\n")
    for option in declared_options():
        flag = "MODEL" if option.name == "model" else option.flag
        lines.append(
            f".TP\n.B {_plain(flag)}\n{_plain(_meaning(option))} Setting {_plain(option.name)}, "
            f"variable {_plain(option.variable)}.\n"
        )
    return "".join((*lines, CLOSING))


def _meaning(option: Option) -> str:
    bounds = option.bounds or ", ".join(option.choices)
    return f"{option.help} ({bounds})" if bounds else option.help


def _paragraphs(text: str) -> Iterator[str]:
    for part in text.strip().split("\n\n"):
        if part.startswith("\b"):  # formatted by hand
            yield f".nf\n{_plain(part.removeprefix(chr(8)).strip(chr(10)), keeps_lines=True)}\n.fi\n"
        else:
            yield f"{_plain(part)}\n"


def _plain(text: str, *, keeps_lines: bool = False) -> str:
    """Return a text in roff: no character of it is a command."""
    text = text if keeps_lines else " ".join(text.split())
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def completions() -> dict[str, str]:
    """Return the completion scripts by the names that packages give them. The shells load them at their first use."""
    bash, zsh, fish = (
        get_completion_script(prog_name="edgeagent", complete_var=COMPLETE_VARIABLE, shell=shell)
        for shell in ("bash", "zsh", "fish")
    )
    # zsh runs the file as the function that completes. typer's script is for ~/.zshrc.
    loaded = zsh.strip().replace("compdef _edgeagent_completion edgeagent", '_edgeagent_completion "$@"')
    return {"edgeagent.bash": f"{bash.strip()}\n", "_edgeagent": f"{loaded}\n", "edgeagent.fish": f"{fish.strip()}\n"}


def main() -> int:
    """Write the files into the folder that the command line names; return the exit status."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"edgeagent.1": man_page(), **completions()}.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
