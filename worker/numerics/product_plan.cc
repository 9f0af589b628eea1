#include "worker/numerics/product_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace trainyard {
namespace {

constexpr ProductPath kPaths[] = {ProductPath::kMkl, ProductPath::kOneDnn, ProductPath::kOwn};
constexpr std::pair<ProductLayout, const char*> kLayouts[] = {
    {ProductLayout::kPlain, "plain"}, {ProductLayout::kTransposed, "transposed"}, {ProductLayout::kGradient, "gradient"}};

std::optional<ProductPath> PathOfName(absl::string_view name) {
  for (const ProductPath path : kPaths) {
    if (name == PathName(path)) return path;
  }
  return std::nullopt;
}

std::optional<ProductKey> KeyOfText(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const std::pair<absl::string_view, absl::string_view> sizes = absl::StrSplit(parts.second, absl::MaxSplits('x', 1));
  for (const auto& [layout, name] : kLayouts) {
    ProductKey key{.layout = layout};
    if (parts.first != name || !absl::SimpleAtoi(sizes.first, &key.depth) ||
        !absl::SimpleAtoi(sizes.second, &key.columns) || key.depth <= 0 || key.columns <= 0) {
      continue;
    }
    return key;
  }
  return std::nullopt;
}

// Reads one "name=value". Returns false if it is not valid.
bool ReadEntry(absl::string_view name, absl::string_view value, ProductPlan& plan) {
  if (name == "lever") {
    plan.mkl_lever = value == "1";
    return value == "0" || value == "1";
  }
  const std::optional<ProductPath> path = PathOfName(value);
  if (!path.has_value()) return false;
  if (name == "others") {
    plan.others = *path;
    return true;
  }
  if (name == "memory") {
    plan.in_memory = *path;
    return *path != ProductPath::kOneDnn;
  }
  const std::optional<ProductKey> key = KeyOfText(name);
  if (!key.has_value() || plan.choices.size() == kMaxChoices) return false;
  // Sorted in the text, so that equal plans have equal texts.
  if (!plan.choices.empty() && !(plan.choices.back().key < *key)) return false;
  plan.choices.push_back({.key = *key, .path = *path});
  return true;
}

ProductPlan& PlanOfProcess() {
  static ProductPlan plan;
  return plan;
}

}  // namespace

const char* PathName(ProductPath path) {
  switch (path) {
    case ProductPath::kMkl:
      return "mkl";
    case ProductPath::kOneDnn:
      return "onednn";
    case ProductPath::kOwn:
      break;
  }
  return "own";
}

ProductPath ProductPlan::PathOf(const ProductKey& key) const {
  const auto found = std::lower_bound(choices.begin(), choices.end(), key,
                                      [](const Choice& choice, const ProductKey& wanted) { return choice.key < wanted; });
  return found != choices.end() && found->key == key ? found->path : others;
}

std::string ProductPlan::ToString() const {
  std::string text =
      absl::StrCat("lever=", mkl_lever ? 1 : 0, " others=", PathName(others), " memory=", PathName(in_memory));
  for (const Choice& choice : choices) {
    const char* layout = kLayouts[static_cast<size_t>(choice.key.layout)].second;
    absl::StrAppend(&text, " ", layout, ":", choice.key.depth, "x", choice.key.columns, "=", PathName(choice.path));
  }
  return text;
}

std::string ProductPlan::Summary() const {
  std::set<ProductPath> used;
  for (const Choice& choice : choices) used.insert(choice.path);
  if (choices.empty()) used.insert(others);
  std::vector<std::string> names;
  for (const ProductPath path : used) {
    names.push_back(path == ProductPath::kMkl && mkl_lever ? "mkl_avx512" : PathName(path));
  }
  return absl::StrJoin(names, " and ");
}

absl::StatusOr<ProductPlan> ParsePlan(absl::string_view text) {
  ProductPlan plan;
  for (const absl::string_view entry : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (!ReadEntry(parts.first, parts.second, plan)) {
      return absl::InvalidArgumentError(absl::StrCat("'", entry, "' is not a choice of code for products"));
    }
  }
  return plan;
}

ProductPlan UniformPlan(ProductPath path, bool lever) {
  return {.mkl_lever = lever,
          .others = path,
          .in_memory = path == ProductPath::kOneDnn ? ProductPath::kMkl : path};
}

void UseProductPlan(ProductPlan plan) { PlanOfProcess() = std::move(plan); }

const ProductPlan& ProductPlanInUse() { return PlanOfProcess(); }

}  // namespace trainyard
