"""Our execution of chat templates gives the texts of jinja2 and its marks (the bytes of each {% generation %}), in the
environment that transformers makes for jinja2: expressions of every kind, templates in the styles of well-known models,
and mutations of them."""

import json
import random
import subprocess

import harness
import pytest
from transformers.utils import chat_template_utils

PROGRAM = harness.BIN / "tests" / "render_lines"
MUTATIONS = 400

CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello! "}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "Ünï\U0001f600code"},
     {"role": "assistant", "content": "<b>'\"</b>"}, {"role": "user", "content": ""},
     {"role": "assistant", "content": "a</think>b", "reasoning_content": "because"}],
    [{"role": "user", "content": "weather?"},
     {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
         "name": "get", "arguments": {"city": "Zürich", "days": 2, "exact": True, "near": None, "f": 1.5}}}]},
     {"role": "tool", "content": "{\"t\": 1}", "name": "get"}, {"role": "assistant", "content": "Sunny"}],
    [{"role": "user", "content": [{"type": "text", "text": "parts"}, {"type": "image"}]},
     {"role": "assistant", "content": "x"}],
]
TOOLS = [None, [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]]

# Templates in the styles of ChatML and Qwen2, Llama-3 with tools, Llama-2, Mistral, Gemma, Phi-3, Zephyr and
# DeepSpeed-Chat.
STYLES = {
    "chatml": """{% for message in messages %}
{%- if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ message.content ~ '<|im_end|>' }}{% endif %}
{{- '\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "qwen": """{%- if tools %}{{- '<|im_start|>system\\n# Tools' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, many=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.many and message.role == "user" and message.content is string and not(message.content[:3] == '<t>'
        and message.content.endswith('</t>')) %}{%- set ns.many = true %}{%- set ns.last = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{% set content = '' %}{% endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role }}
        {%- if loop.last or (not loop.last and reasoning and loop.index0 > ns.last) %}
            {{- '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- '\\n' + content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<call>{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- '}</call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<r>' ~ content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}{%- endif %}
{%- endfor %}""",
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|h|>system<|e|>\\n\\n" }}{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{{- system }}{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|e|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at once") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}{{- '<|h|>assistant<|e|>\\n\\n' -}}
        {%- for name, value in tool_call.arguments | items %}{{- name + '="' ~ value ~ '"' }}
        {%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
        {{- "<|eot|>" }}
    {%- else %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}{{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|h|>assistant<|e|>\\n\\n' }}{%- endif %}""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{% set system_message = false %}{% endif %}{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if loop.index0 == 0 and system_message != false %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "mistral": """{%- set users = messages | selectattr("role", "equalto", "user") | list %}{{- bos_token }}
{%- for m in messages | rejectattr('role', 'in', ['system']) %}
{%- if m.role == "user" %}{%- if tools is not none and m == users[-1] %}{{- "[AVAILABLE_TOOLS] [" }}
{%- for tool in tools %}{%- set tool = tool.function %}{{- '{"function": {' }}
{%- for key, val in tool.items() if key != "return" %}{%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}{%- if not loop.last %}{{- ", " }}{%- endif %}
{%- endfor %}{{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}{%- endfor %}{%- endif %}
{{- "[INST] " + m.content + "[/INST]" }}{%- else %}{{- " " + m.content|trim + eos_token }}{%- endif %}{%- endfor %}""",
    "gemma": """{{ bos_token }}{%- macro render(m, role='') -%}<start_of_turn>{{ role or m['role'] }}
{% if m['content'] is string %}{{ m['content'] | trim }}{% elif m['content'] is iterable %}
{% for item in m['content'] %}
{% if item['type'] == 'image' %}<image>{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}
{% else %}{{ raise_exception("Invalid content type") }}{% endif %}<end_of_turn>
{% endmacro %}
{%- for message in messages -%}{{ render(message, role='model' if message.role == 'assistant') }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}
{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "zephyr": """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content']
 + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n
{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n
{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}""",
    "deepspeed": """{% for m in messages %}
{{ {'user': 'Human', 'assistant': 'Assistant'}.get(m.role, m.role | title) }}: \
{{ m.content }}{{ ' ' if not loop.last else eos_token }}{% endfor %}""",
}

EXPRESSIONS = [
    '1 + 2 * 3 ** 2 - 7 // 2 % 3',
    '-3 | abs',
    '- 2 ** 2',
    '7 / 2',
    '10.5 + 1',
    '1 < 2 < 3 > 2',
    'true + 1',
    '1 == 1.0',
    "'a' ~ 1 ~ none ~ true ~ 1.0",
    "'ab' 'cd'",
    "'x' * 3",
    '[1] + [2, 3]',
    '(1,)',
    '(1, 2)',
    '()',
    '[]',
    '{}',
    "{'a': 1, 2: [3], none: 'x'}",
    "{'a': 1}.a",
    "{'a': 1}['b'] is defined",
    "'abc'[1]",
    "'abc'[-1]",
    "'abc'[9] is defined",
    "'äbcdé'[1:4]",
    '[1,2,3,4][::-1]',
    '[1,2,3,4][1::2]',
    "'abc'[::-1]",
    '[1,2,3][-2:]',
    '[1,2,3][:99]',
    "'a' in 'cat'",
    '1 not in [1]',
    "'k' in {'k': 1}",
    'not 1 is string',
    '1 is number',
    'true is number',
    '1 is integer',
    'true is integer',
    "'a' is sequence",
    '{} is sequence',
    '{} is mapping',
    'x is undefined',
    'x is iterable',
    'x is sequence',
    'none is none',
    'x.y is defined',
    "x | default('d')",
    "'' | default('d', true)",
    "none | default('d')",
    'x | length',
    'x | list',
    'x | upper',
    'x | tojson',
    "'a' if false",
    "'a' if 1 else 'b' if 2 else 'c'",
    '1 or 2',
    "0 or ''",
    '0 and 1',
    '1 and 2',
    'not x',
    "' a b  c '.split()",
    "'a,b,c'.split(',', 1)",
    "'a,b,c'.rsplit(',', 1)",
    "' a b '.split(none, 1)",
    "'a\\nb\\r\\nc'.splitlines()",
    "'xxaxx'.strip('x')",
    "'  a'.lstrip() ~ '|'",
    "'aXb'.lower()",
    "'a-b c'.title()",
    '"it\'s a".title()',
    '"it\'s a-b" | title',
    "'aBC' | capitalize",
    "'abc'.startswith(('x', 'a'))",
    "'abc'.endswith('c')",
    "'a.b.c'.replace('.', '-', 1)",
    "'abca'.find('a')",
    "'abca'.rfind('a')",
    "'aéa'.find('a', )",
    "'abab'.count('ab')",
    "'a=b=c'.partition('=')",
    "'a=b=c'.rpartition('=')",
    "'ab'.removeprefix('a')",
    "'12'.isdigit()",
    "', '.join(['a', 'b'])",
    "{'a': 1}.get('a')",
    "{'a': 1}.get('b', 2)",
    "{'a': 1}.get('b')",
    "{'a': 1, 'b': 2}.items() | list",
    "{'a': 1}.keys() | list",
    "{'a': 1}.values() | list",
    "{'b': 1, 'A': 2} | dictsort",
    '[3, 1, 2] | sort',
    '[3, 1, 2] | sort(reverse=true)',
    "['b', 'A'] | sort",
    "['b', 'A', 'a'] | unique | list",
    '[1, 2] | first',
    '[] | first is defined',
    '[1, 2] | last',
    '[1, 2] | reverse | list',
    "'abc' | reverse",
    "[1, 2] | join('-')",
    '[[1], none] | join',
    "[{'a': 1}, {'a': 2}] | map(attribute='a') | list",
    "[{'a': {'b': 1}}] | map(attribute='a.b') | join",
    "['a', 'b'] | map('upper') | list",
    '[0, 1, 2] | select | list',
    "[0, 1, 2] | select('odd') | list",
    "[1, 2] | reject('equalto', 1) | list",
    "[{'a': 1}, {}] | selectattr('a') | list",
    "[{'a': 1}, {}] | selectattr('a', 'defined') | list",
    "'a\\nb\\n\\nc' | indent",
    "'a\\nb' | indent(2, true)",
    "'a\\n\\nb' | indent('>', blank=true)",
    "'42' | int",
    "'4.7' | int",
    "'x' | int(5)",
    '3.9 | int',
    "'1.5' | float",
    '1.0',
    '0.1 + 0.2',
    '100000.0 * 100000000000000.0',
    '0.0001 / 10',
    '3.0 * 2',
    "' a ' | trim",
    "'xax' | trim('x')",
    "[1, 'a', none, true, {'b': [1.5]}] | tojson",
    "{'b': 1, 'a': 2} | tojson(sort_keys=true)",
    "{'a': [1, {'b': 2}]} | tojson(indent=2)",
    '\'é\\u2028\\x7f\\n"\' | tojson',
    "'é😀' | tojson(ensure_ascii=true)",
    "[1,2] | tojson(separators=(',', ':'))",
    '[] | tojson(indent=2)',
    '"it\'s"',
    '["it\'s", \'a"b\', \'c\\\'"\', \'\\n\\t\\\\\', \'é\\x00\\x7f\']',
    'range(3) | list',
    'range(5, 0, -2) | list',
    'range(2)[1]',
    '1 is odd',
    '4 is divisibleby(2)',
    '4 is divisibleby 3',
    "'a' is eq 'a'",
    '2 is gt 1',
    '1 is in [1]',
    "'A' is upper",
    'none is sameas none',
    'namespace(a=1).a',
    'namespace(a=1).b is defined',
    'x + 1',
    'x.y',
    'x()',
    'none + 1',
    "'a' + 1",
    '[] < []',
    '{}.x.y',
    '1 // 0',
    "raise_exception('no')",
    "'a' | length",
    "{'a': 1} | length",
    "{'a': 1} | list",
    "{'a': 1} | items | list",
    "'é😀' | length",
    "'abc' | list",
    '[1, 2] | string',
    'none | string',
    '1 | string ~ 2',
    "'%d' | replace('%', '!')",
    'a.items',
    "'x'.y is defined",
    '[1] == [1.0]',
    "{'a': [1]} == {'a': [1]}",
    "'a' < 'b'",
    "'b' >= 'a'",
    '[2, 1] | sort | first',
    '((1))',
    '1 is not none',
    "{'a': 'x'} is mapping and 'a' is string",
    "[1, 2, 3] | select('gt', 1) | map('string') | join(',')",
    "'a' is defined and not x is defined",
]

STATEMENTS = [
    '{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }};{% endfor %}',
    "{% for k in {'a': 1} %}{{ k }}{% else %}none{% endfor %}",
    '{% for i in range(5) if i % 2 %}{{ loop.index }}/{{ loop.length }}:{{ i }}{{ loop.revindex }}{{ '
    'loop.first }}{{ loop.last }} {% endfor %}',
    '{% for i in [1, 2, 3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{% endfor %}',
    '{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif '
    '%}{{ i }}{% endfor %}',
    '{% set a, b = 1, 2 %}{{ a }}{{ b }}',
    '{% set x %} t {{ 1 }} {% endset %}[{{ x }}]',
    '{% set x | trim %} t {% endset %}[{{ x }}]',
    "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    '{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}',
    '{% set x = 1 %}{% for i in [1] %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}',
    '{% if x %}a{% elif 1 %}b{% else %}c{% endif %}',
    '{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}',
    '{% macro m(a, b=2) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{% set c = 9 %}{{ m(1) }}{{ m(b=1, a=0) '
    '}}{{ m() }}',
    '{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}',
    '{{ m(1) }}{% macro m(a) %}{% endmacro %}',
    '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}',
    '{% set ns = namespace(x=1, y=[]) %}{% set ns.y = ns.y + [2] %}{{ ns.x }}{{ ns.y }}',
    '{% generation %}a{{ 1 }}{% endgeneration %}b{% for i in [1, 2] %}[{% generation %}é{{ i }}{% '
    'endgeneration %}]{% endfor %}',
    '{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}',
    'a\n  {%- if true -%}  \n b \n{% endif %}\n\n c \n',
    '  {% if true %}\n  x\n  {% endif %}\n',
    '{{ 1 }}\n{% if true %}\n\n{% endif %}\ny',
    '{# c #}\n{#- d -#}  z',
    '\r\na\r{% if 1 %}\r\nb{% endif %}',
    '{% raw %} {{ x }} {% endraw %} \n',
    '{%- raw -%}  {% x %}  {%- endraw -%}  q',
    'x{%+ if true %}\n y{% endif %}',
    "{{ 'a' -}}  \n  b",
    "{% set g = [1, 2] | map('string') %}{{ g | join }}{{ g | join }}",
    '{% for i in [1,2] %}{% for j in [3] %}{{ loop.index }}{{ i }}{{ j }}{% endfor %}{{ loop.index }}{% '
    'endfor %}',
    '{% if 1, %}t{% endif %}',
    '{{ 1, 2 }}',
    '{% set loop = 1 %}',
    '{% set ns = 1 %}{% set ns.x = 1 %}',
    '{% for a, b in [[1]] %}{% endfor %}',
    '{% if %}',
    '{{ }}',
    '{{ 1 ',
    '{% endif %}',
    "{{ 'a }}",
]

NOT_SUPPORTED = ["a.items", "[] < []", "{% set loop = 1 %}"]


class Renderer:
    def __init__(self):
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, template, variables):
        self.process.stdin.write(json.dumps({"template": template, "variables": variables}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended at {template!r}"
        return json.loads(line)


@pytest.fixture(scope="module")
def ours():
    renderer = Renderer()
    yield renderer
    renderer.process.stdin.close()
    assert renderer.process.wait() == 0


def theirs(template, variables):
    """The text and the marked bytes of jinja2, or its error."""
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        text, marks = chat_template_utils._render_with_assistant_indices(
            compiled_template=compiled, messages=variables.get("messages", []), tools=variables.get("tools"),
            documents=None, add_generation_prompt=variables.get("add_generation_prompt", False),
            **{key: value for key, value in variables.items()
               if key not in ("messages", "tools", "add_generation_prompt")})
    except Exception as error:  # noqa: BLE001 - any error of the template
        return {"error": f"{type(error).__name__}: {error}"}
    size = lambda end: len(text[:end].encode())  # noqa: E731
    return {"text": text, "generated": [[size(begin), size(end)] for begin, end in marks]}


def check(ours, template, variables, must_render=True):
    expected, got = theirs(template, variables), ours(template, variables)
    if "error" in got:
        # Our execution refuses more than jinja2 does, but what both render is equal.
        assert "error" in expected or not must_render, f"{template!r}: {got['error']}; expected {expected['text']!r}"
        return False
    assert "error" not in expected, f"{template!r}: {expected['error']}, but rendered {got['text']!r}"
    assert got == expected, template
    return True


def variables_of(conversation, tools, prompts):
    return {"messages": conversation, "tools": tools, "add_generation_prompt": prompts,
            "bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_have_the_values_of_jinja2(expression, ours):
    check(ours, f"[{{{{ {expression} }}}}]", {"a": {"items": 1}}, must_render=expression not in NOT_SUPPORTED)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_have_the_texts_and_marks_of_jinja2(statement, ours):
    check(ours, statement, {}, must_render=statement not in NOT_SUPPORTED)


@pytest.mark.parametrize("style", STYLES)
def test_templates_in_the_styles_of_models_have_the_texts_of_jinja2(style, ours):
    rendered = 0
    for conversation in CONVERSATIONS:
        for tools in TOOLS:
            for prompts in (False, True):
                rendered += check(ours, STYLES[style], variables_of(conversation, tools, prompts))
    assert rendered > 0


def test_mutated_templates_are_refused_or_have_the_texts_of_jinja2(ours):
    numbers = random.Random(15)
    pieces = [piece for text in [*STYLES.values(), *STATEMENTS] for piece in text.replace("%}", "%}\0").split("\0")]
    rendered = 0
    for _ in range(MUTATIONS):
        text = numbers.choice([*STYLES.values(), *STATEMENTS])
        for _ in range(numbers.randint(1, 3)):
            begin = numbers.randrange(len(text) + 1)
            end = min(len(text), begin + numbers.choice([0, 1, 1, 2, 5, 20]))
            new = numbers.choice([*" -()'|.[]~\n", "", "{{", "}}", "{%", "%}", "not ", "is ", "loop.",
                                  numbers.choice(pieces), numbers.choice(EXPRESSIONS)])
            text = text[:begin] + new + text[end:]
        rendered += check(ours, text, variables_of(numbers.choice(CONVERSATIONS), None, False), must_render=False)
    assert rendered > MUTATIONS // 20
