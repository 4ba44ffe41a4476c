# ruff: noqa: E501 (templates are easier to read in one line)
import math
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from edgeagent.text.template.budget import Budget
from edgeagent.text.template.sandbox import RawJson, Sandbox, TemplateRaisedError


def render(source: str, **variables: object) -> str:
    sandbox = Sandbox(lambda: datetime(2026, 3, 9, 14, 5))
    template = sandbox.from_string(source)
    sandbox.budget = Budget()
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


SHARED = (
    "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
    "{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
TUPLES = "{% set ns = namespace(a=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
LONG = "{% set ns = namespace(x='x y ') %}{% for i in range(20) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"

BOMBS = [
    SHARED + "{{ ns.a == ns.b }}",
    SHARED + "{{ 1 if ns.a != ns.b else 2 }}",
    SHARED + "{{ ns.a < ns.b }}",
    SHARED + "{{ ns.a in [ns.b] }}",
    SHARED + "{{ ns.a is eq ns.b }}",
    SHARED + "{{ ns.a is in [ns.b] }}",
    SHARED + "{{ [ns.a] | select('equalto', ns.b) | list | length }}",
    SHARED + "{{ [ns.a, ns.b] | sort | length }}",
    SHARED + "{{ [ns.a, ns.b] | max | length }}",
    SHARED + "{{ [{'k': ns.a}, {'k': ns.b}] | groupby('k') | length }}",
    SHARED + "{{ [ns.a].index(ns.b) }}",
    SHARED + "{{ [ns.a].count(ns.b) }}",
    SHARED + "{{ {'a': ns.a} == {'a': ns.b} }}",
    TUPLES + "{{ {ns.a: 1} | length }}",
    TUPLES + "{{ {}[ns.a] }}",
    TUPLES + "{{ {}.get(ns.a) }}",
    TUPLES + "{{ [ns.a] | unique | list | length }}",
    "{{ 1 | round(1000000000, 'ceil') }}",
    "{{ 1 | round(-1000000000) }}",
    LONG + "{% for i in range(99) %}{{ (ns.x | list) | length }}{% endfor %}",
    LONG + "{% for i in range(99) %}{{ ns.x | wordcount }}{% endfor %}",
    LONG + "{% for i in range(99) %}{{ (ns.x | title) | length }}{% endfor %}",
    "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(1000000000) %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ 10**10 * 'x' }}",
    "{{ [0] * 10**9 }}",
    "{{ 10 ** (10**10) }}",
    "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ''.join([ns.x, ns.x]) %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('', 'xx') %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x.items() }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | string }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for i in range(99999) %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
    "{% set t %}{% for i in range(99999) %}" + "x" * 10000 + "{% endfor %}{% endset %}",
    "{% set ns = namespace(x=[], l=range(90000) | list) %}{% for i in range(9999) %}{% set ns.x = [ns.x, ns.l[:]] %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x, ["
    + "i," * 4000
    + "]] %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x, {"
    + ",".join(f"{n}: i" for n in range(3000))
    + "}] %}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ 'x' | indent(1000000000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ [[1]] | sum(start=[]) }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeagent.text.template.budget._CPU_S", 0.5)
    with pytest.raises(TemplateError):
        render(source)


def test_a_long_text_is_not_worked_on_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget()
    monkeypatch.setattr("time.thread_time", lambda: math.inf)
    budget.spend(100)  # the clock is not read for each short one
    with pytest.raises(SecurityError, match="takes more than 1 s"):
        budget.spend(1 << 20)


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
    "{{ strftime_now.__self__.budget }}",
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


def test_nothing_runs_while_a_template_is_compiled() -> None:
    sandbox = Sandbox(datetime.now)
    sandbox.budget = Budget()
    for source in BOMBS:
        sandbox.from_string(source)


def test_the_budget_does_not_carry_over() -> None:
    sandbox = Sandbox(datetime.now)
    template = sandbox.from_string("{% for i in range(10) %}{% set x = 'x' * 8000000 %}{% endfor %}")
    for _ in range(3):
        sandbox.budget = Budget()
        assert "".join(template.generate()) == ""
    with pytest.raises(TemplateError):
        "".join(template.generate())
