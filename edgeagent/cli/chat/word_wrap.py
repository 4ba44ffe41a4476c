"""Breaks a streamed answer into lines between words. A terminal alone breaks a line anywhere."""

from __future__ import annotations

from rich.cells import cell_len

_FENCES = ("```", "~~~")
_TAB_COLUMNS = 8
_CLEAR_LINE = "\x1b[K"  # from the cursor on


class WordWrap:
    """Wraps one text that arrives in pieces. The text starts at the left edge of the terminal.

    Each piece is shown at once: a word that turns out too long for its line is erased and moves to the next line. Three
    things stay intact, so only the terminal breaks them: a word longer than a line, code between backticks, and the
    lines of a fenced code block. A wide character, as in Chinese, begins a word of its own.
    """

    def __init__(self) -> None:
        self._output: list[str] = []
        self._column = 0
        # The word at the end of the text: the part that is shown, the part that is not, and the columns of both.
        self._shown = self._unshown = ""
        self._num_word_columns = 0
        self._line_start = ""  # the first characters of the line, without leading blanks
        self._is_block = self._is_span = False

    def wrap(self, text: str, num_columns: int) -> str:
        """Return what to write to a terminal of this width to show the next piece of the text."""
        self._output = []
        for char in text:
            self._add(char, num_columns)
        self._show_word()
        return "".join(self._output)

    def _add(self, char: str, num_columns: int) -> None:
        if char == "\n":
            self._end_line()
            return
        if len(self._line_start) < len(_FENCES[0]) and (self._line_start or not char.isspace()):
            self._line_start += char
        if self._is_block:
            self._output.append(char)
        elif char in " \t" and not self._is_span:
            self._end_word()
            self._add_blank(char, num_columns)
        else:
            self._add_to_word(char, num_columns)

    def _end_line(self) -> None:
        self._end_word()
        self._output.append("\n")
        if self._line_start in _FENCES:
            self._is_block = not self._is_block
        self._column, self._line_start, self._is_span = 0, "", False

    def _show_word(self) -> None:
        self._output.append(self._unshown)
        self._shown += self._unshown
        self._unshown = ""

    def _end_word(self) -> None:
        self._show_word()
        self._shown, self._num_word_columns = "", 0

    def _add_blank(self, char: str, num_columns: int) -> None:
        """Add a blank. At the end of a full line it is left out."""
        if self._column < num_columns - 1:
            self._output.append(char)
            width = 1 if char == " " else _TAB_COLUMNS - self._column % _TAB_COLUMNS
            self._column = min(self._column + width, num_columns - 1)

    def _add_to_word(self, char: str, num_columns: int) -> None:
        if char == "`":
            self._is_span = not self._is_span
        width = cell_len(char)
        if width > 1:
            self._end_word()
        # The last column stays empty: with the cursor behind it, terminals treat a backspace differently.
        if self._num_word_columns + width >= num_columns:
            self._is_span = False  # a backtick without a second one must not stop the wrapping
        elif self._column + width >= num_columns:
            self._move_word()
        if self._column + width > num_columns:  # the terminal has broken the word
            self._column = 0
        self._unshown += char
        self._column += width
        self._num_word_columns += width

    def _move_word(self) -> None:
        """Move the word to the start of the next line."""
        erase = "\b" * cell_len(self._shown) + _CLEAR_LINE if self._shown else ""
        self._output.append(f"{erase}\n")
        self._shown, self._unshown = "", self._shown + self._unshown
        self._column = self._num_word_columns
