// The C++ side of interop.py: `write FOLDER [STEP]` writes a checkpoint there and prints its path; `read FILE` prints
// one line per tensor of a safetensors file: name, dtype, shape, hash of its bytes.
#include <iostream>

#include "checkpoint/safetensors.h"
#include "tests/unit/checkpoint/testing.h"

int main(int argc, char** argv) {
  using namespace trainyard;
  if (argc != 3 && argc != 4) return 2;
  if (argv[1] == std::string("write")) {
    SmallState state(0);
    const uint64_t step = argc == 4 ? std::stoull(argv[3]) : 1;
    auto saved = WriteCheckpoint(argv[2], SmallManifest(step), state.tensors(), FileSystem::Real());
    if (!saved.ok()) std::cerr << saved.status() << "\n";
    if (saved.ok()) std::cout << saved->path << "\n";
    return saved.ok() ? 0 : 1;
  }
  auto file = SafetensorsFile::Open(argv[2]);
  if (!file.ok()) {
    std::cerr << file.status() << "\n";
    return 1;
  }
  for (const TensorInfo& tensor : (*file)->tensors()) {
    std::cout << tensor.name << "\t" << tensor.dtype << "\t" << ShapeText(tensor.shape) << "\t"
              << HashHex((*file)->Bytes(tensor)) << "\n";
  }
}
