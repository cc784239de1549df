"""Hostile templates: each is refused for its request, within bounded work and memory, in one line."""

from __future__ import annotations

import resource

import pytest

from kvtune.tokenization.chat_rules import chat_rules
from kvtune.tokenization.chat_template import budget
from kvtune.tokenization.chat_template.template import ChatTemplate, TemplateRefusedError
from kvtune.tokenization.errors import UnusableInputError

TWICE = "{% set ns = namespace(x=['a'], y=['a']) %}{% for i in range(60) %}"
NESTED = TWICE + "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
MEGABYTE = "{% set b = 'a' * 1000000 %}"

ENDLESS = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "nested loops over literals": "{% for a in [1,1,1,1,1,1,1,1,1] %}" * 12 + "{% endfor %}" * 12,
    "a macro that doubles": (
        "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a loop that calls itself": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "blocks that call one another": (
        "{% block a %}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}{% endblock %}"
    ),
    "loops in a block that is set": (
        "{% set x %}{% for i in range(100000) %}{% for j in range(99) %}yyyy{% endfor %}"
        "{% endfor %}{% endset %}"
    ),
}
TOO_LARGE = {
    "repeated text": "{{ 'a' * 10 ** 10 }}",
    "a repeated list": "{{ ([1] * 999999999) | length }}",
    "doubling by +": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "doubling by ~": TWICE + "{% set ns.z = (ns.z ~ ns.z) or 'a' %}{% endfor %}",
    "a list in itself, twice, sixty times": NESTED + "{{ ns.x }}",
    "the same, compared": NESTED + "{% if ns.x == ns.y %}{% endif %}",
    "the same, as JSON": NESTED + "{{ ns.x | tojson }}",
    "the same, in dicts": TWICE + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "squares of squares": (
        "{% set ns = namespace(x=99999) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"
    ),
    "a wide %-field": "{{ '%0999999999d' % 1 }}",
    "a width as argument": "{{ '%*d' % (999999999, 1) }}",
    "a wide format field": "{{ '{:999999999}'.format(1) }}",
    "a nested format field": "{{ '{:{}}'.format(1, 999999999) }}",
    "a wide format filter": "{{ '%0999999999d' | format(1) }}",
    "center": "{{ 'a' | center(999999999) }}",
    "ljust": "{{ 'a'.ljust(999999999) }}",
    "zfill": "{{ 'a'.zfill(width) }}",
    "expandtabs": "{{ '\t'.expandtabs(999999999) }}",
    "indent": "{{ 'a\nb' | indent(999999999) }}",
    "a wide JSON indent": "{{ [1, [2]] | tojson(indent=999999999) }}",
    "long JSON separators": MEGABYTE + "{{ [1, 2] | tojson(separators=(b, b)) }}",
    "replace": MEGABYTE + "{{ b.replace('a', b) }}",
    "the replace filter": MEGABYTE + "{{ b | replace('', b) }}",
    "join with a long separator": MEGABYTE + "{{ b.join(range(100000) | map('string')) }}",
    "join of one text": MEGABYTE + "{{ ([b] * 100000) | join }}",
    "join by attribute": MEGABYTE + "{{ ([{'x': b}] * 100000) | join(attribute='x') }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list | length }}",
    "slice": "{{ [1] | slice(999999999) | list | length }}",
    "sum of lists": "{{ ([[1] * 1000] * 100000) | sum(start=[]) | length }}",
    "splitting again and again": (
        "{% set b = 'a,' * 1000000 %}{% for i in range(300) %}{% set c = b.split(',') %}{% endfor %}"
    ),
    "a date of megabytes": "{{ strftime_now('%99999999Y') }}",
}


def refused(source: str) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(TemplateRefusedError) as caught:
        ChatTemplate(source, chat_rules()).render(
            [{"role": "user", "content": "hi"}], variables={"width": 999_999_999}
        )
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 400 * 1024, "kilobytes"
    message = str(caught.value)
    assert "\n" not in message and len(message) < 200
    return message


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_work_ends(name: str) -> None:
    refused(ENDLESS[name])


@pytest.mark.parametrize("name", TOO_LARGE)
def test_too_much_text_is_never_made(name: str) -> None:
    assert "more than a prompt needs" in refused(TOO_LARGE[name])


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    ],
)
def test_nesting_without_end_is_refused_when_it_is_compiled(source: str) -> None:
    with pytest.raises(UnusableInputError, match="cannot be compiled"):
        ChatTemplate(source, chat_rules())


def test_slow_steps_that_are_not_counted_end_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.2)
    compared = "{% set b = 'a' * 9000000 %}{% set c = 'a' * 9000000 %}"
    loop = "{% for i in range(100000) %}{% if b == c %}{% endif %}{% endfor %}"
    assert "takes too long" in refused(compared + loop)


def test_the_same_template_and_request_are_refused_every_time() -> None:
    source = "{% for i in range(1450) %}{% for j in range(1450) %}{% endfor %}{% endfor %}"
    assert refused(source) == refused(source)


def test_what_large_requests_need_is_granted() -> None:
    """A quadratic template on a long conversation, and one that copies every message again and again."""
    messages = [{"role": "user", "content": "x" * 2000} for _ in range(400)]
    quadratic = (
        "{% for a in messages %}"
        "{% for b in messages %}"
        "{% if loop.last %}"
        "{{ b.role }}{% endif %}"
        "{% endfor %}"
        "{% endfor %}"
    )
    assert ChatTemplate(quadratic, chat_rules()).render(messages) == "user" * 400
    copying = (
        "{% set ns = namespace(t='') %}"
        "{% for m in messages %}"
        "{% set ns.t = ns.t + m.content %}"
        "{% endfor %}"
        "{{ ns.t }}"
    )
    assert len(ChatTemplate(copying, chat_rules()).render(messages)) == 800_000
