#include "common/escape.h"

#include <gtest/gtest.h>

#include <string>

namespace trainyard {
namespace {

TEST(EscapeText, PlainText_IsUnchanged) {
  const std::string text = "job \"é\" 漢字 🚂 \\ 100 % ~";

  EXPECT_EQ(EscapeText(text), text);
  EXPECT_EQ(EscapeText(""), "");
}

TEST(EscapeText, ControlCharacters_AreEscaped) {
  EXPECT_EQ(EscapeText("a\x1b[2Jb"), R"(a\x1b[2Jb)");
  EXPECT_EQ(EscapeText("one\r\ntwo\tthree"), R"(one\x0d\x0atwo\x09three)");
  EXPECT_EQ(EscapeText(std::string("a\0b\x7f", 4)), R"(a\x00b\x7f)");
  EXPECT_EQ(EscapeText("\xc2\x9b"
                       "31m"),
            R"(\xc2\x9b31m)")
      << "C1: the one-character form of ESC [";
  EXPECT_EQ(EscapeText("\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6"), R"(\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6)");
}

TEST(EscapeText, InvalidUtf8_IsEscapedByteByByte) {
  EXPECT_EQ(EscapeText("caf\xe9!"), R"(caf\xe9!)");
  EXPECT_EQ(EscapeText("\xc0\xaf"), R"(\xc0\xaf)") << "overlong";
  EXPECT_EQ(EscapeText("\xe0\x80\xaf"), R"(\xe0\x80\xaf)") << "overlong";
  EXPECT_EQ(EscapeText("\xed\xa0\x80"), R"(\xed\xa0\x80)") << "half of a surrogate pair";
  EXPECT_EQ(EscapeText("\xf4\x90\x80\x80"), R"(\xf4\x90\x80\x80)") << "beyond U+10FFFF";
  EXPECT_EQ(EscapeText("\xf0\x9f\x9a"), R"(\xf0\x9f\x9a)") << "cut short";
}

TEST(EscapeLines, LineEnds_AreKept) { EXPECT_EQ(EscapeLines("one\n\x1btwo\n"), "one\n\\x1btwo\n"); }

}  // namespace
}  // namespace trainyard
