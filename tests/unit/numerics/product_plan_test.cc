#include "worker/numerics/product_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr ProductKey kFirst{.layout = ProductLayout::kPlain, .depth = 384, .columns = 1152};
constexpr ProductKey kSecond{.layout = ProductLayout::kGradient, .depth = 384, .columns = 1152};

TEST(ProductPlan, TextGivesTheSamePlan) {
  const ProductPlan plan{.mkl_lever = true,
                         .others = ProductPath::kOneDnn,
                         .in_memory = ProductPath::kOwn,
                         .choices = {{kFirst, ProductPath::kOwn}, {kSecond, ProductPath::kMkl}}};

  const absl::StatusOr<ProductPlan> read = ParsePlan(plan.ToString());

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, plan);
  EXPECT_EQ(read->PathOf(kFirst), ProductPath::kOwn);
  EXPECT_EQ(read->PathOf(kSecond), ProductPath::kMkl);
  EXPECT_EQ(read->PathOf({.layout = ProductLayout::kTransposed, .depth = 384, .columns = 1152}), ProductPath::kOneDnn);
  EXPECT_EQ(plan.Summary(), "mkl_avx512 and own");
}

TEST(ProductPlan, DamagedText_NamesThePart) {
  std::string too_many = "lever=0";
  for (size_t i = 1; i <= kMaxChoices + 1; ++i) absl::StrAppend(&too_many, " plain:1x", i, "=own");
  for (const std::string& text : {std::string("lever=2"), std::string("others=fast"), std::string("memory=onednn"),
                                  std::string("plain:0x4=own"), std::string("plain:4=own"), std::string("odd:4x4=own"),
                                  std::string("plain:4x4=own plain:4x4=own"),
                                  std::string("gradient:1x1=own plain:1x1=own"), too_many}) {
    EXPECT_THAT(std::string(ParsePlan(text).status().message()), testing::HasSubstr("is not a choice")) << text;
  }
}

TEST(ProductPlan, WithoutChoice_EverythingIsMkls) {
  EXPECT_EQ(ProductPlan().PathOf(kFirst), ProductPath::kMkl);
  EXPECT_EQ(UniformPlan(ProductPath::kOneDnn, false).in_memory, ProductPath::kMkl);
}

}  // namespace
}  // namespace trainyard
