// The matrix library inside the LibTorch wheel (MKL) takes its AVX-512 kernels only on a CPU that says it is Intel's;
// on another with AVX-512 it runs at half its speed in fp32. It asks through a function that an executable may define,
// and this file does: `mkl_serv_intel_cpu_true`, exported, answering from a flag that is set before the first
// operation.
//
// An executable that wants the lever links the target `mkl_lever` itself (an object library: a linker would drop it
// from an archive) and is built with ENABLE_EXPORTS.
#pragma once

#include <cstdint>
#include <string>

namespace trainyard {

enum class MklLever { kAuto, kOn, kOff };

// Whether the lever changes anything here: the CPU is not Intel's and has AVX2 at least. Which setting is faster, only
// a measurement shows (trainer/kernel_choice.h); never where tests ask for a lesser CPU.
bool MklLeverHasEffect();

// Call before the first tensor operation of the process; later calls change nothing in MKL. kAuto: on where the CPU has
// AVX-512, which was the faster on most of those that were measured. kOn: also where it has only AVX2. Returns one
// sentence for the log, with the time of a small matrix product made on the path chosen.
std::string SetMklLever(MklLever choice);

// GFLOP/s of fp32 products of size x size matrices, on the path chosen and at::get_num_threads() threads: the best of
// `tries`.
double TimeProducts(int64_t size, int tries);
// Whether it is on, as set last.
bool MklLeverIsOn();

}  // namespace trainyard
