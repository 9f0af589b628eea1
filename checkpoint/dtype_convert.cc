#include "checkpoint/dtype_convert.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_writer.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// A 16-bit type: a sign bit, then exponent bits, then fraction bits.
struct Half {
  int exponent_bits;
  int fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint16_t exponent_ones() const { return static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction_bits); }
};
constexpr Half kF16{.exponent_bits = 5, .fraction_bits = 10};
constexpr Half kBf16{.exponent_bits = 8, .fraction_bits = 7};

double FromHalf(uint16_t bits, const Half& type) {
  const int exponent = (bits & type.exponent_ones()) >> type.fraction_bits;
  const int fraction = bits & ((1 << type.fraction_bits) - 1);
  double value = 0;
  if (exponent == (1 << type.exponent_bits) - 1) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - type.bias() - type.fraction_bits);
  } else {
    value = std::ldexp(fraction + (1 << type.fraction_bits), exponent - type.bias() - type.fraction_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t ToHalf(double value, const Half& type) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | type.exponent_ones() | static_cast<uint16_t>(1 << (type.fraction_bits - 1));
  if (std::isinf(value)) return sign | type.exponent_ones();
  if (value == 0) return sign;
  int exponent = 0;
  std::frexp(value, &exponent);           // value = m x 2^exponent, m in [0.5, 1)
  const int min_power = 1 - type.bias();  // the exponent of the smallest normal values and of all subnormal ones
  const int power = std::max(exponent - 1, min_power);
  // Scaling by a power of two is exact, so this rounds once: to nearest, ties to even.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), type.fraction_bits - power));
  // Rounding up to the next power of two increments the exponent. A value above the largest finite one becomes
  // infinity.
  const uint64_t bits = static_cast<uint64_t>(units) + (static_cast<uint64_t>(power - min_power) << type.fraction_bits);
  return sign | static_cast<uint16_t>(std::min<uint64_t>(bits, type.exponent_ones()));
}

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double LoadAs(const char* at, absl::string_view dtype) {
  if (dtype == "F64") return Load<double>(at);
  if (dtype == "F32") return Load<float>(at);
  return FromHalf(Load<uint16_t>(at), dtype == "F16" ? kF16 : kBf16);
}

void StoreAs(double value, absl::string_view dtype, char* at) {
  if (dtype == "F64") {
    std::memcpy(at, &value, sizeof value);
  } else if (dtype == "F32") {
    const float narrow = static_cast<float>(value);
    std::memcpy(at, &narrow, sizeof narrow);
  } else {
    const uint16_t bits = ToHalf(value, dtype == "F16" ? kF16 : kBf16);
    std::memcpy(at, &bits, sizeof bits);
  }
}

// Returns the bits of the float with the same value, which exists because every value of 16 bits is also a float.
uint32_t FloatOfBf16(uint16_t bits) { return static_cast<uint32_t>(bits) << 16; }

uint32_t FloatOfF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0) {  // zero and subnormal values: fraction x 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    return sign | wide;
  }
  // 112 is the difference between the biases of the exponents, 127 - 15.
  return exponent == 31 ? sign | 0x7F800000u | fraction << 13 : sign | (exponent + 112) << 23 | fraction << 13;
}

// Converts 16-bit values to float without going through double, because published weights usually need this conversion.
// Neither pointer needs to be aligned.
template <typename Widen>
void WidenHalves(const char* from, uint64_t count, Widen widen, char* to) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t wide = widen(Load<uint16_t>(from + 2 * i));
    std::memcpy(to + 4 * i, &wide, sizeof wide);
  }
}

}  // namespace

bool IsFloating(absl::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

std::string DtypeOfName(absl::string_view name) {
  if (name == "fp64") return "F64";
  if (name == "fp32") return "F32";
  if (name == "fp16") return "F16";
  return name == "bf16" ? "BF16" : "";
}

void ConvertInto(absl::string_view bytes, absl::string_view from, absl::string_view to, absl::Span<char> out) {
  const uint64_t from_bytes = DtypeBytes(from), to_bytes = DtypeBytes(to), count = bytes.size() / from_bytes;
  if (from == to) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
  } else if (from == "BF16" && to == "F32") {
    WidenHalves(bytes.data(), count, FloatOfBf16, out.data());
  } else if (from == "F16" && to == "F32") {
    WidenHalves(bytes.data(), count, FloatOfF16, out.data());
  } else {
    for (uint64_t i = 0; i < count; ++i) {
      StoreAs(LoadAs(bytes.data() + i * from_bytes, from), to, out.data() + i * to_bytes);
    }
  }
}

std::string ConvertValues(absl::string_view bytes, absl::string_view from, absl::string_view to) {
  std::string out(bytes.size() / DtypeBytes(from) * DtypeBytes(to), '\0');
  ConvertInto(bytes, from, to, absl::MakeSpan(out.data(), out.size()));
  return out;
}

absl::Status CheckNoOverflow(absl::string_view tensor, absl::string_view exact, absl::string_view from,
                             absl::string_view converted, absl::string_view to) {
  if (!HasNonfinite(to, converted)) return absl::OkStatus();
  const uint64_t from_bytes = DtypeBytes(from), to_bytes = DtypeBytes(to), count = exact.size() / from_bytes;
  for (uint64_t i = 0; i < count; ++i) {
    if (!std::isinf(LoadAs(converted.data() + i * to_bytes, to))) continue;
    const double value = LoadAs(exact.data() + i * from_bytes, from);
    if (!std::isfinite(value)) continue;  // the weights contained it before
    const bool is_f16 = to == "F16";
    // Exact values of a merged weight are F64, which is not the type in which the weight is stored.
    const std::string keep = from == "F64" ? "" : absl::StrCat(", or keep their type ", from);
    return absl::InvalidArgumentError(absl::StrCat(tensor, " has the value ", value, ", which the type ", to,
                                                   " cannot store", is_f16 ? " (its largest value is 65504)" : "",
                                                   "; choose ", is_f16 ? "bf16 or fp32" : "a type with a larger range",
                                                   " for the weights", keep));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ConvertWeights(absl::string_view tensor, absl::string_view bytes, absl::string_view from,
                                           absl::string_view to) {
  std::string converted = ConvertValues(bytes, from, to);
  RETURN_IF_ERROR(CheckNoOverflow(tensor, bytes, from, converted, to));
  return converted;
}

}  // namespace trainyard
