// The rules of Jinja that chat templates depend on; tests/interop/templates_test.py compares many more with jinja2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "templates/interpreter.h"
#include "templates/json_value.h"
#include "templates/parser.h"

namespace trainyard::templates {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using Json = nlohmann::ordered_json;

absl::StatusOr<Rendered> Render(absl::string_view text, const Json& variables = Json::object()) {
  absl::StatusOr<ParsedTemplate> parsed = ParseTemplate(text);
  if (!parsed.ok()) return parsed.status();
  Context context;
  for (const auto& [name, value] : variables.items()) context.emplace_back(name, FromJson(value).value());
  return RenderTemplate(*parsed, context);
}

std::string TextOf(absl::string_view text, const Json& variables = Json::object()) {
  const absl::StatusOr<Rendered> rendered = Render(text, variables);
  return rendered.ok() ? rendered->text : absl::StrCat("error: ", rendered.status().message());
}

std::string ErrorOf(absl::string_view text, const Json& variables = Json::object()) {
  const absl::StatusOr<Rendered> rendered = Render(text, variables);
  return rendered.ok() ? "none" : std::string(rendered.status().message());
}

TEST(RenderTest, TagsRemoveTheWhitespaceAroundThem) {
  EXPECT_EQ(TextOf("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(TextOf("a \n {{- 'b' -}} \n c"), "abc");
  EXPECT_EQ(TextOf("  {%+ if true %}\nb{% endif +%}\nc"), "  b\nc");
  EXPECT_EQ(TextOf("a {# not shown #}\nb"), "a b");
  EXPECT_EQ(TextOf("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
}

TEST(RenderTest, FiltersBindMoreTightlyThanOperators) {
  EXPECT_EQ(TextOf("{{ ' a' + ' b ' | trim ~ 1 }}"), " ab1");
  EXPECT_EQ(TextOf("{{ not 1 in [2] and 1 < 2 <= 2 }}"), "True");
  EXPECT_EQ(TextOf("{{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }}"), "-4 2 3.5 8");
}

TEST(RenderTest, ValuesArePrintedAsByPython) {
  EXPECT_EQ(TextOf("{{ v }}", {{"v", {1, 2.0, "it's", nullptr, true, {{"k", "\n"}}}}}),
            R"([1, 2.0, "it's", None, True, {'k': '\n'}])");
  EXPECT_EQ(TextOf("{{ v | tojson }}", {{"v", {{"a", {1.5, nullptr}}, {"b", "é\n"}}}}),
            R"({"a": [1.5, null], "b": "é\n"})");
  EXPECT_EQ(TextOf("{{ [1] | tojson(indent=2) }}"), "[\n  1\n]");
}

TEST(RenderTest, LoopsHaveTheirOwnNames) {
  EXPECT_EQ(TextOf("{% set x = 0 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"), "120");
  EXPECT_EQ(TextOf("{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}"),
            "3");
  EXPECT_EQ(
      TextOf("{% for i in 'abc' if i != 'b' %}{{ loop.index }}{{ i }}{{ loop.length }}{{ loop.last }} {% endfor %}"),
      "1a2False 2c2True ");
  EXPECT_EQ(TextOf("{% for i in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(TextOf("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i "
                   "}}{% endfor %}"),
            "02");
}

TEST(RenderTest, MacrosSeeTheNamesOfThePartThatDefinesThem) {
  EXPECT_EQ(TextOf("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ y }}{% endmacro %}{% set y = 3 %}{{ m(1) }}{{ m(1, b=2) }}"),
            "113123");
  EXPECT_EQ(TextOf("{% set t %}a{{ 1 }}{% endset %}{{ t | upper }}"), "A1");
}

TEST(RenderTest, GenerationsAreMarkedByTheirBytes) {
  const auto rendered = Render("é{% for m in ['a', 'bc'] %}[{% generation %}{{ m }}{% endgeneration %}]{% endfor %}");

  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "é[a][bc]");
  EXPECT_THAT(rendered->generated, ::testing::ElementsAre(Pair(3, 4), Pair(6, 8)));
}

TEST(RenderTest, UndefinedValuesArePrintedAsNothingButHaveNoAttributes) {
  EXPECT_EQ(TextOf("[{{ x }}{{ x | default('d') }}{{ m.y is defined }}]", {{"m", Json::object()}}), "[dFalse]");
  EXPECT_THAT(ErrorOf("\n{{ x.y }}"), HasSubstr("line 2: 'x' is undefined"));
  EXPECT_THAT(ErrorOf("{{ x + 'a' }}"), HasSubstr("'x' is undefined"));
}

TEST(RenderTest, WhatIsNotSupportedIsRefusedByNameAndLineBeforeAnythingIsRendered) {
  EXPECT_THAT(ErrorOf("\n{% if false %}{{ x | urlize }}{% endif %}"),
              HasSubstr("line 2: the filter 'urlize' is not supported"));
  EXPECT_THAT(ErrorOf("{{ x is escaped }}"), HasSubstr("the test 'escaped' is not supported"));
  EXPECT_THAT(ErrorOf("{% include 'x' %}"), HasSubstr("the statement {% include %}"));
  EXPECT_THAT(ErrorOf("{{ lipsum() }}"), HasSubstr("the name 'lipsum' is not supported"));
  EXPECT_THAT(ErrorOf("{{ other() }}"), HasSubstr("the function 'other' is not supported"));
  EXPECT_THAT(ErrorOf("{{ x.format(1) }}"), HasSubstr("the method 'format' is not supported"));
  EXPECT_THAT(ErrorOf("{{ f(*x) }}"), HasSubstr("(* and **) are not supported"));
  EXPECT_THAT(ErrorOf("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive loops"));
  EXPECT_THAT(ErrorOf("{% generation %}{% generation %}{% endgeneration %}{% endgeneration %}"),
              HasSubstr("{% generation %} inside a macro, {% generation %}, {% filter %} or {% set %} block"));
  EXPECT_THAT(ErrorOf("{{ (x | safe) + 'b' }}"), HasSubstr("the filter 'safe'"));
}

TEST(RenderTest, TheTemplateCanRefuseAConversation) {
  EXPECT_THAT(ErrorOf("\n\n{{ raise_exception('roles must alternate') }}"),
              HasSubstr("line 3: the template refuses the conversation: roles must alternate"));
}

TEST(RenderTest, FunctionInACollection_IsRefused) {
  for (const char* collection : {"[m]", "{'a': m}"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{% macro m() %}{% endmacro %}{% set x = ", collection, " %}")),
                HasSubstr("in a list, tuple or dictionary is not supported"));
  }
}

TEST(RenderTest, HostileTemplatesEndWithAnError) {
  EXPECT_THAT(
      ErrorOf(
          "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99999) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
      HasSubstr("bytes of text"));
  EXPECT_THAT(ErrorOf("{% set r = range(9999) %}{% for i in r %}{% for j in r %}{{ j }}{% endfor %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("nested more than"));
  EXPECT_THAT(ErrorOf("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("nested more than"));
  EXPECT_THAT(ErrorOf(absl::StrCat("{{ ", std::string(99'999, '('), "1", std::string(99'999, ')'), " }}")),
              HasSubstr("nested more than"));
  const std::string maps = absl::StrJoin(std::vector<std::string>(1000, "'map'"), ", ");
  EXPECT_THAT(ErrorOf(absl::StrCat("{{ 'a' | map(", maps, ") | list }}")), HasSubstr("nested more than"));
  constexpr char kLong[] = "{% set a = 'a' * 9999999 %}{% for i in range(9999) %}{% set x = ";
  for (const char* search : {"a.strip(a)", "a | trim(a)", "a.split(a ~ 'b')", "a.rsplit(a ~ 'b')",
                             "a.partition(a ~ 'b')", "(['a'] + [a] * 9999) | sort(case_sensitive=true)"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(kLong, search, " %}{% endfor %}")), HasSubstr("steps")) << search;
  }
  EXPECT_THAT(ErrorOf("{{ 'a' * 999999999999 }}"), HasSubstr("bytes of text"));
  // The last item cannot be printed, but the limit is reached before it.
  EXPECT_THAT(ErrorOf("{{ [1, 1, 1, 1, 1, y] | tojson(separators=('a' * 70000000, ':')) }}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(ErrorOf("{{ {'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': y} | tojson(separators=(',', 'a' * 70000000)) }}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(ErrorOf("{{ 9223372036854775807 + 1 }}"), HasSubstr("more than 63 bits"));
  EXPECT_THAT(ErrorOf("{{ (-9223372036854775807 - 1) // -1 }}"), HasSubstr("more than 63 bits"));
}

}  // namespace
}  // namespace trainyard::templates
