#include "worker/numerics/precision.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

struct NamedType {
  const char* name;
  at::ScalarType type;
};
constexpr NamedType kNamedTypes[] = {
    {"fp32", at::kFloat}, {"fp64", at::kDouble}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};

const char* NameOf(at::ScalarType type) {
  for (const NamedType& each : kNamedTypes) {
    if (each.type == type) return each.name;
  }
  return "?";
}

bool Is16Bit(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

absl::Status Check(const Precision& precision) {
  std::vector<std::string> problems;
  const at::ScalarType all[] = {precision.param, precision.reduce, precision.output, precision.master, precision.state};
  int num_fp64 = 0;
  for (at::ScalarType type : all) num_fp64 += type == at::kDouble ? 1 : 0;
  if (num_fp64 != 0 && num_fp64 != 5)
    problems.push_back("fp64 must be used for all of param, reduce, output, master and state, or for none");
  if (precision.master == at::kHalf) problems.push_back("master fp16 loses most updates; use fp32 or bf16");
  if (precision.state == at::kHalf) problems.push_back("state fp16 cannot hold squares of gradients; use fp32 or bf16");
  if (precision.master == at::kBFloat16 && precision.param != at::kBFloat16) {
    problems.push_back(absl::StrCat("master bf16 has fewer digits than param ", NameOf(precision.param),
                                    "; use param bf16 or master fp32"));
  }
  if (Is16Bit(precision.reduce) && precision.reduce != precision.param && precision.param != at::kFloat) {
    problems.push_back(absl::StrCat("reduce ", NameOf(precision.reduce), " cannot be combined with param ",
                                    NameOf(precision.param), "; use ", NameOf(precision.param), " or fp32"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("precision: ", absl::StrJoin(problems, "; ")));
}

}  // namespace

std::string Precision::ToString() const {
  if (param == reduce && param == output && param == master && param == state) return NameOf(param);
  return absl::StrCat(NameOf(param), " (reduce ", NameOf(reduce), ", output ", NameOf(output), ", master ",
                      NameOf(master), ", state ", NameOf(state), ")");
}

absl::StatusOr<at::ScalarType> TypeFromName(absl::string_view name) {
  for (const NamedType& each : kNamedTypes) {
    if (name == each.name) return each.type;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is not a precision; use fp32, fp64, bf16 or fp16"));
}

absl::StatusOr<Precision> ParsePrecision(absl::string_view name) {
  ASSIGN_OR_RETURN(const at::ScalarType type, TypeFromName(name));
  if (!Is16Bit(type)) return Precision{.param = type, .reduce = type, .output = type, .master = type, .state = type};
  return Precision{.param = type, .scaled = type == at::kHalf};
}

absl::StatusOr<Precision> ParsePrecision(const PrecisionNames& names) {
  auto type_of = [](const std::string& name, at::ScalarType fallback) -> absl::StatusOr<at::ScalarType> {
    if (name.empty()) return fallback;
    return TypeFromName(name);
  };
  Precision precision;
  ASSIGN_OR_RETURN(precision.param, type_of(names.param, at::kFloat), << "at param");
  const at::ScalarType other_types = precision.param == at::kDouble ? at::kDouble : at::kFloat;
  ASSIGN_OR_RETURN(precision.reduce, type_of(names.reduce, precision.param), << "at reduce");
  ASSIGN_OR_RETURN(precision.output, type_of(names.output, other_types), << "at output");
  ASSIGN_OR_RETURN(precision.master, type_of(names.master, other_types), << "at master");
  ASSIGN_OR_RETURN(precision.state, type_of(names.state, other_types), << "at state");
  precision.scaled = precision.param == at::kHalf || precision.reduce == at::kHalf;
  RETURN_IF_ERROR(Check(precision));
  return precision;
}

}  // namespace trainyard
