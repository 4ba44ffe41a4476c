"""Shows an answer in a terminal while it arrives: lines end between words, and Markdown is bold or in color."""

from __future__ import annotations

from rich.cells import cell_len

PLAIN = "\x1b[0m"
_FENCES = ("```", "~~~")
_TAB_COLUMNS = 8
_CLEAR_LINE = "\x1b[K"  # from the cursor on


class WordWrap:
    """Wraps one text that arrives in pieces. The text starts at the left edge of the terminal.

    Each piece is shown at once: a word that turns out too long for its line is erased and moves to the next line. Three
    things stay intact, so only the terminal breaks them: a word longer than a line, code between backticks, and the
    lines of a fenced code block. A wide character, as in Chinese, begins a word of its own.

    If `is_styled`, headings and **bold** text are bold, and code is in color. All characters of the text stay, so it
    can be copied as Markdown.
    """

    def __init__(self, *, is_styled: bool = False) -> None:
        self._is_styled = is_styled
        self._output: list[str] = []
        self._column = 0
        # The word at the end of the text: the part that is shown, the part that is not, the columns of the whole and of
        # what is shown, and the style that it began in. Changes of the style are in the parts.
        self._shown = self._unshown = ""
        self._num_word_columns = self._num_shown_columns = 0
        self._word_style = self._style = PLAIN
        self._line_start = ""  # the first characters of the line, without leading blanks
        self._is_block = self._is_span = False
        self._is_heading = self._is_in_hashes = self._is_bold = False
        self._num_stars = 0  # directly before the next character

    def wrap(self, text: str, num_columns: int) -> str:
        """Return what to write to a terminal of this width to show the next piece of the text."""
        self._output = []
        for char in text:
            self._add(char, num_columns)
        self._show_word()
        return "".join(self._output)

    def end(self) -> str:
        """Return what to write after the text, so that the terminal's style is plain again."""
        return "" if self._style == PLAIN else PLAIN

    def _add(self, char: str, num_columns: int) -> None:
        if char == "\n":
            self._end_line()
            return
        if len(self._line_start) < len(_FENCES[0]) and (self._line_start or not char.isspace()):
            self._line_start += char
        if self._is_block:
            self._output.append(char)
            return
        if char == "\t" and self._is_span:
            char = " "  # the width of a tab depends on its column, and the code may move
        self._note_marks(char)
        if char in " \t" and not self._is_span:
            self._end_word()
            self._add_blank(char, num_columns)
        else:
            self._add_to_word(char, num_columns)

    def _note_marks(self, char: str) -> None:
        """Start or end a heading, and start bold text, if the next character does so."""
        if char == "#" and self._line_start == "#":
            self._is_heading = self._is_in_hashes = True
        elif self._is_in_hashes and char != "#":
            self._is_heading, self._is_in_hashes = char == " ", False
        if self._num_stars == 2 and char not in "* \t" and not self._is_span:
            self._is_bold = True
        self._restyle()

    def _end_line(self) -> None:
        self._end_word()
        self._output.append("\n")
        if self._line_start in _FENCES:
            self._is_block = not self._is_block
        self._column, self._line_start, self._is_span = 0, "", False
        self._is_heading = self._is_in_hashes = self._is_bold = False
        self._num_stars = 0
        self._restyle()
        self._end_word()

    def _restyle(self) -> None:
        """Add a change of the terminal's style to the word, if the style changes here."""
        is_strong, is_code = self._is_heading or self._is_bold, self._is_span or self._is_block
        style = f"\x1b[0{';1' * is_strong}{';36' * is_code}m" if self._is_styled else PLAIN
        if style != self._style:
            self._unshown += style
            self._style = style

    def _show_word(self) -> None:
        self._output.append(self._unshown)
        self._shown += self._unshown
        self._unshown, self._num_shown_columns = "", self._num_word_columns

    def _end_word(self) -> None:
        self._show_word()
        self._shown, self._word_style = "", self._style
        self._num_word_columns = self._num_shown_columns = 0

    def _add_blank(self, char: str, num_columns: int) -> None:
        """Add a blank. At the end of a full line it is left out."""
        self._num_stars = 0
        if self._column < num_columns - 1:
            self._output.append(char)
            width = 1 if char == " " else _TAB_COLUMNS - self._column % _TAB_COLUMNS
            self._column = min(self._column + width, num_columns - 1)

    def _add_to_word(self, char: str, num_columns: int) -> None:
        ends_span = char == "`" and self._is_span
        if char == "`" and not self._is_span:
            self._is_span = True
            self._restyle()
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
        self._num_stars = self._num_stars + 1 if char == "*" and not self._is_span else 0
        if ends_span:
            self._is_span = False
        if self._is_bold and self._num_stars == 2:
            self._is_bold, self._num_stars = False, 0
        self._restyle()

    def _move_word(self) -> None:
        """Move the word to the start of the next line."""
        erase = "\b" * self._num_shown_columns + _CLEAR_LINE if self._num_shown_columns else ""
        style = "" if self._word_style == self._style else self._word_style
        self._output.append(f"{erase}\n{style}")
        self._shown, self._unshown = "", self._shown + self._unshown
        self._num_shown_columns = 0
        self._column = self._num_word_columns
