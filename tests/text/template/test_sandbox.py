# ruff: noqa: E501 (templates are easier to read in one line)
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from jinja2 import TemplateError

from edgeagent.text.template.chat_template import Sandbox, TemplateRaisedError
from edgeagent.text.template.conversation import RawJson


def render(source: str, **variables: object) -> str:
    sandbox = Sandbox(lambda: datetime(2026, 3, 9, 14, 5))
    template = sandbox.from_string(source)
    return "".join(template.generate(**variables))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for x in [1, 2, 3] %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}", "1,2,3"),
        ("{% for x in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/3 2/3 3/3 "),
        ("{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}", "013"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ '=' ~ v }}{% endfor %}", "a=1"),
        ("{% for x in missing %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% set ns = namespace(n=0) %}{% for x in range(5) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "10"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m('b') }}", "<a><b>"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc\n"),
        ("{{ {'b': 'é<>&\\'', 'a': [1, none, true]} | tojson }}", '{"b": "é<>&\'", "a": [1, null, true]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ 'a b'.split(' ') | join('-') }}{{ ' x '.strip() }}{{ 'abc'[::-1] }}", "a-bxcba"),
        ("{{ 'abc'[1:] }}{{ [1, 2, 3, 4][1:3] }}{{ 'abcd'[::2] }}{{ [" + "1," * 50 + "][49] }}", "bc[2, 3]ac1"),
        ("{{ 'aXa'.replace('X', '--') }}{{ 'x' | replace('x', 'y') }}", "a--ay"),
        ("{% generation %}inner{% endgeneration %}", "inner"),
        ("{{ strftime_now('%d %b %Y') }}", "09 Mar 2026"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '%s' | format('b') }}", "a-3b"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}", "hi|ho"),
        ("{{ [1, 2] + [3] }}{{ [3, 1] | sort | first }}{{ [1, 2] | sum }}{{ 2 ** 10 }}", "[1, 2, 3]131024"),
        ("{{ 'x\ny' | indent(2) }}|{{ missing }}|{{ missing is defined }}|{{ none }}", "x\n  y||False|None"),
        ("{% set t %}a{{ 1 }}b{% endset %}{{ t }}{{ t | length }}", "a1b3"),
        ("{% filter upper %}abc{% endfilter %}", "ABC"),
        ("{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}", "123"),
    ],
)  # fmt: skip
def test_what_templates_use_works(source: str, expected: str) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "no"},
        {"role": "user", "content": "ho"},
    ]
    assert render(source, messages=messages) == expected


def test_raw_json_keeps_its_text() -> None:
    value = RawJson({"a": 1}, '{"a":1}')
    assert render("{{ value | tojson }} {{ value.a }} {{ [value] | tojson }}", value=value) == '{"a":1} 1 [{"a": 1}]'


def test_a_template_may_refuse() -> None:
    with pytest.raises(TemplateRaisedError, match="no system role"):
        render("{{ raise_exception('no system role') }}")


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ lipsum.__globals__['os'].popen('{command}').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('{command}').read() }}",
    "{{ joiner.__init__.__globals__.os.popen('{command}').read() }}",
    "{{ namespace.__init__.__globals__['os'].popen('{command}').read() }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ self.__init__.__globals__.__builtins__.open('{path}', 'w') }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('{path}', 'w') }}",
    "{{ strftime_now.__closure__ }}",
    "{{ range.__self__.globals }}",
    "{{ range.__func__.__globals__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ dict.fromkeys.__self__.mro() }}",
    "{{ [].__class__.__base__.__subclasses__()[104].__init__.__globals__ }}",
    "{% set f = ''.format_map %}{{ f({'a': 1}) }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '%(a)s'.__mod__({'a': 1}) }}",
    "{{ ((1).__add__).__self__ }}",
    "{% for x in (1,).__iter__() %}{% endfor %}",
    "{{ ''.join.__call__.__self__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% for x in [1] %}{{ loop._iterable.__class__ }}{% endfor %}",
    "{{ [1].append(2) }}",
    "{{ {}.update({'a': 1}) }}",
    "{{ {}.__setitem__('a', 1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
    "{{ url_for.__globals__ }}",
    "{{ config.items() }}",
    "{{ request.application.__globals__ }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ [1] | map('attr', '__class__') | list }}",
    "{{ [''] | map(attribute='__class__') | map(attribute='__mro__') | list | tojson }}",
    "{{ ['x'] | map('format') | list | map(attribute='__class__.__mro__') | join }}",
    "{{ [''] | groupby('__class__') }}",
    "{{ x.__class__ if x is defined else y.__class__.__base__ }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_there_is_no_way_out(source: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    source = source.replace("{command}", f"touch {canary}").replace("{path}", str(canary))
    text = ""
    with suppress(TemplateError, TypeError):
        text = render(source)
    assert not canary.exists()
    assert "class" not in text
    assert "built-in" not in text
    assert "function" not in text
