"""What a chat template says about the time: its answers depend on the date, on the time of day, or on neither."""

from __future__ import annotations

import pytest

from edgeagent.answers.files import shows_day


@pytest.mark.parametrize(
    ("template", "shows"),
    [
        ("{{ messages[0].content }}", False),
        ("{{ strftime_now('%d %b %Y') }}", True),
        ('{% if strftime_now is defined %}{{ strftime_now("%A, %-d %B 100%%") }}{% endif %}', True),
        ("{{ strftime_now('%d %b %Y %H:%M') }}", None),
        *(
            (f"{{{{ strftime_now('%Y {part}') }}}}", None)
            for part in ("%c", "%-I", "%OH", "%EX", "%10M", "%+", "%N", "%")
        ),
        ("{{ strftime_now(pattern) }}", None),
        ("{% set now = strftime_now %}{{ now('%H') }}", None),
    ],
)
def test_whether_a_template_shows_the_date(template: str, *, shows: bool | None) -> None:
    assert shows_day(template) is shows
