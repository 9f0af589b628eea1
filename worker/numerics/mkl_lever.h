// The matrix library inside the LibTorch wheel (MKL) takes its AVX-512 kernels only on a CPU that says it is Intel's;
// on another with AVX-512 it runs at half its speed in fp32. It asks through a function that an executable may define,
// and this file does: `mkl_serv_intel_cpu_true`, exported, answering from a flag that is set before the first
// operation.
//
// An executable that wants the lever links the target `mkl_lever` itself (an object library: a linker would drop it
// from an archive) and is built with ENABLE_EXPORTS.
#pragma once

#include <string>

namespace trainyard {

enum class MklLever { kAuto, kOn, kOff };

// Call before the first tensor operation of the process; later calls change nothing in MKL. kAuto: on where the CPU has
// AVX-512. kOn: also where it has only AVX2, which gains a few percent. Returns one sentence for the log, with the time
// of a small matrix product made on the path chosen.
std::string SetMklLever(MklLever choice);
// Whether it is on, as set last.
bool MklLeverIsOn();

}  // namespace trainyard
