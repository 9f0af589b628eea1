#include "spec/former_keys.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr char kFormerKernels[] = "resources.mkl_avx512";
constexpr char kKernels[] = "resources.product_kernels";

v1::ProductKernels KernelsOf(v1::Switch former) {
  return former == v1::SWITCH_ON    ? v1::PRODUCT_KERNELS_MKL_INTEL
         : former == v1::SWITCH_OFF ? v1::PRODUCT_KERNELS_MKL
                                    : v1::PRODUCT_KERNELS_UNSPECIFIED;
}

const char* Name(v1::Switch former) {
  return former == v1::SWITCH_ON ? "on" : former == v1::SWITCH_OFF ? "off" : "auto";
}

const char* Name(v1::ProductKernels kernels) {
  return kernels == v1::PRODUCT_KERNELS_MKL_INTEL ? "mkl_intel" : kernels == v1::PRODUCT_KERNELS_MKL ? "mkl" : "auto";
}

}  // namespace

void CheckFormerKeys(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  const v1::Resources& resources = spec.resources();
  // `auto` leaves a key unset, so only its position shows that it was given.
  const bool has_former = resources.has_mkl_avx512() || positions.count(kFormerKernels) > 0;
  const bool has_present = resources.has_product_kernels() || positions.count(kKernels) > 0;
  const v1::ProductKernels meant = KernelsOf(resources.mkl_avx512()), present = resources.product_kernels();
  if (!has_former) return;
  if (has_present && meant != present) {
    problems->AddError(
        positions, kFormerKernels,
        absl::StrCat("is ", Name(resources.mkl_avx512()), ", which means ", kKernels, ": ", Name(meant), ", but ",
                     kKernels, " is ", Name(present), "; remove ", kFormerKernels, ", which is its former name"));
    return;
  }
  problems->AddWarning(
      positions, kFormerKernels,
      absl::StrCat("is deprecated: the key is ", kKernels, " now; write ", kKernels, ": ", Name(meant)));
}

void ReplaceFormerKeys(v1::JobSpec& spec) {
  v1::Resources& resources = *spec.mutable_resources();
  if (!resources.has_mkl_avx512()) return;
  if (!resources.has_product_kernels()) resources.set_product_kernels(KernelsOf(resources.mkl_avx512()));
  resources.clear_mkl_avx512();
}

void AddFormerKeys(v1::JobSpec& spec) {
  if (!spec.resources().has_product_kernels()) return;
  const bool is_intel = spec.resources().product_kernels() == v1::PRODUCT_KERNELS_MKL_INTEL;
  spec.mutable_resources()->set_mkl_avx512(is_intel ? v1::SWITCH_ON : v1::SWITCH_OFF);
}

}  // namespace trainyard
