"""Chat templates: rendered from the request alone, in a sandbox, within bounds."""

from __future__ import annotations

import platform
import re
import signal
import sys
import time
from datetime import UTC, datetime

import pytest

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.request import Chat
from tallystick.errors import IncomparableError, InputError
from tallystick.execution import chat

PLAIN = Chat(system=None, clock=None)
CHATML = """
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\nBe brief.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def render(
    template: str, prompt: str = "Hi", request: Chat = PLAIN, *, seconds: float = 5.0
) -> str:
    return chat.render(template, prompt, request, bos="<s>", eos="</s>", seconds=seconds)


def test_a_user_message_is_rendered_and_the_reply_begun() -> None:
    assert render(CHATML) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_message_comes_first() -> None:
    assert render(CHATML, request=Chat("Só versos.", None)) == (
        "<|im_start|>system\nSó versos.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_prompts_are_data() -> None:
    """Whatever the prompt says, it is neither a template nor HTML."""
    prompt = "{{ 7 * 7 }} {% raise %} <b>&amp;</b> \u2028 'quoted'"

    assert render("{{ messages[0].content }}", prompt) == prompt


def test_blocks_are_trimmed_as_templates_expect() -> None:
    assert render("{% if true %}\n  {% set x = 1 %}\n{{ x }}\n{% endif %}\n") == "1\n"


def test_what_a_template_finds_around_it() -> None:
    shown = (
        "{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}|{{ tools }}|{{ documents }}"
    )

    assert render(shown) == "<s>|</s>|True|None|None"
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}")
    assert render("{{ {'a': '<é>', 'b': [1]} | tojson }}") == '{"a": "<é>", "b": [1]}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


@pytest.mark.parametrize("clock", [0, 951_782_400, 1_700_000_000])
def test_a_dated_template_sees_the_clock_of_the_request(clock: int) -> None:
    """On any other day too: the machine's clock is never asked."""
    dated = "Today is {{ strftime_now('%d %B %Y, %H:%M:%S %Z') }}."
    moment = datetime.fromtimestamp(clock, UTC)

    assert render(dated, request=Chat(None, clock)) == (
        f"Today is {moment:%d %B %Y, %H:%M:%S} UTC."
    )


def test_a_dated_template_needs_a_clock() -> None:
    with pytest.raises(InputError, match="asks for a clock"):
        render("{{ strftime_now('%Y') }}")


@pytest.mark.parametrize("clock", [2**40, 10**11])
def test_a_clock_beyond_the_calendar_is_an_input_error(clock: int) -> None:
    with pytest.raises(InputError, match="could not be rendered"):
        render("{{ strftime_now('%Y') }}", request=Chat(None, clock * 10))


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ ('' | attr('__class__')).__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['os'].system('true') }}",
        "{{ strftime_now.__code__ }}{{ strftime_now.__closure__[0] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ joiner.__init__.__builtins__.open('/etc/hostname').read() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ('%s' | format('')).__class__.__base__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
        "{% extends 'base' %}",
    ],
)
def test_nothing_leads_out_of_the_sandbox(escape: str) -> None:
    with pytest.raises(InputError, match="could not be rendered"):
        render(escape)


@pytest.mark.parametrize("chance", ["{{ [1, 2, 3] | random }}", "{{ lipsum(1) }}"])
def test_nothing_in_a_template_is_left_to_chance(chance: str) -> None:
    with pytest.raises(InputError, match="could not be rendered"):
        render(chance)


@pytest.mark.parametrize(
    "broken",
    [
        "{% if %}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
        "{{ [][1].x }}",
        "{{ 'a' + 1 }}",
        "{{ strftime_now() }}",
        "{{ '\\ud800' }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(1000000) }}",
        "{{ range(100001) | list }}",
        "{{ '%d' % 'x' }}",
        "{{ namespace(x=1).x.y.z }}",
        "{" * 3000 + "x",
        "{{ " + "(" * 3000,
    ],
)
def test_a_broken_template_is_an_input_error(broken: str) -> None:
    with pytest.raises(InputError) as caught:
        render(broken, request=Chat(None, 0))
    assert caught.value.exit_code == 4


def test_a_template_may_refuse_in_its_own_words() -> None:
    with pytest.raises(InputError, match="refuses these messages") as caught:
        render("{{ raise_exception('Roles must alternate') }}")
    assert caught.value.found == "Roles must alternate"


@pytest.mark.parametrize(
    "leak",
    [
        "{{ raise_exception(messages[0].content) }}",
        "{{ raise_exception('No: ' + messages[0].content) }}",
        "{{ raise_exception(messages) }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ {}[messages[0].content].x }}",
        "{{ messages[0].content + 1 }}",
        "{{ strftime_now(messages[0].content, 1) }}",
    ],
)
def test_no_error_quotes_the_prompt(leak: str) -> None:
    with pytest.raises(InputError) as caught:
        render(leak, "my secret prompt")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}"
ENDED = "{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(x='y') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"


@pytest.mark.parametrize(
    "endless",
    [
        NESTED + ENDED,
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "{% set ns = namespace(x='') %}" + NESTED + "{% set ns.x = ns.x ~ 'y' %}" + ENDED,
    ],
)
def test_an_endless_template_is_ended(endless: str) -> None:
    began = time.process_time()
    with pytest.raises(InputError, match="too long"):
        render(endless, seconds=0.2)
    assert time.process_time() - began < 60


@pytest.mark.parametrize(
    "bomb",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ '%10000000000d' % 1 }}",
        DOUBLING + "{% endfor %}{{ ns.x }}",
    ],
)
def test_a_memory_bomb_is_an_input_error(bomb: str) -> None:
    with pytest.raises(InputError, match="too much memory"):
        render(bomb)


DEEP = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"


@pytest.mark.parametrize("template", ["{{ 'a' * 10 ** 10 }}", NESTED + ENDED, DEEP])
def test_what_may_be_this_machine_s_fault_is_the_error_that_was_asked_for(template: str) -> None:
    with pytest.raises(IncomparableError):
        chat.render(template, "Hi", PLAIN, bos="", eos="", seconds=0.2, unable=IncomparableError)


def test_what_is_the_template_s_fault_stays_an_input_error() -> None:
    for template in ("{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ 'a' * 4194305 }}"):
        with pytest.raises(InputError):
            chat.render(template, "Hi", PLAIN, bos="", eos="", unable=IncomparableError)


def test_without_jinja2_nothing_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    with pytest.raises(InputError, match="cannot be rendered here"):
        render(CHATML)
    with pytest.raises(IncomparableError, match="cannot be rendered here"):
        chat.render(CHATML, "Hi", PLAIN, bos="", eos="", unable=IncomparableError)


def test_the_renderer_names_its_versions() -> None:
    python = ".".join(platform.python_version_tuple()[:2])

    assert re.fullmatch(rf"jinja2 3\.\d+\.\d+, Python {re.escape(python)}", chat.renderer())


def test_a_long_rendering_is_refused() -> None:
    with pytest.raises(InputError, match="too long"):
        render("{{ 'a' * 4194305 }}")
    assert len(render("{{ 'a' * 4194304 }}")) == chat.MAX_RENDERED


def test_the_bounds_are_gone_afterwards() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.getsignal(signal.SIGVTALRM)
    render(CHATML)
    with pytest.raises(InputError):
        render("{{ 'a' * 10 ** 10 }}")

    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == handler


def test_the_template_digest_is_that_of_its_bytes() -> None:
    assert chat.template_digest("é") == format_digest(sha256("é".encode()))


def test_a_generation_block_renders_as_what_it_holds() -> None:
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}d") == "abHid"
