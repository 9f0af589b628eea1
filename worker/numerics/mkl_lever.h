// Makes MKL use its fast kernels on CPUs that are not Intel's. The MKL inside the LibTorch wheel uses AVX-512 only if
// the CPU reports that it is Intel's; on other CPUs with AVX-512 it runs at half speed in fp32. MKL calls a function,
// `mkl_serv_intel_cpu_true`, that an executable may define. This file defines the function, and on CPUs that are not
// Intel's it returns a flag that is set before the first operation. This override is called the lever.
//
// An executable that wants the lever links the target `mkl_lever` itself: an object library, because a linker would
// drop the function from an archive. The target also exports the function from the executable.
#pragma once

#include <string>

#include "worker/numerics/product_shape.h"

namespace trainyard {

enum class MklLever { kAuto, kOn, kOff };

// Whether the lever changes anything: the CPU is not Intel's and has at least AVX2. Only a measurement shows which
// setting is faster (trainer/kernel_choice.h). False if TRAINYARD_CPU restricts the CPU.
bool MklLeverHasEffect();

// Call before the first tensor operation of the process; later calls have no effect on MKL. kAuto: enabled if the CPU
// has AVX-512, because that was faster on most CPUs that were measured. kOn: also enabled if the CPU has only AVX2.
// Returns one sentence for the log, with the measured speed of a small matrix product.
std::string SetMklLever(MklLever choice);
// The same without the measurement.
std::string UseMklLever(MklLever choice);

// The clock of TimeProducts.
double SecondsNow();
// Computes the fp32 products of forward and of both gradients once with the current setting, for one weight. Returns
// seconds. With one thread, only the time in which that thread runs is measured, so that other processes disturb
// little.
double TimeProducts(const ProductShape& shape);
// Whether a call of SetMklLever or UseMklLever has enabled the lever.
bool MklLeverIsOn();

}  // namespace trainyard
