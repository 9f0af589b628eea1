# Sets of heavy headers that are compiled once and shared. Every file still includes what it uses; the sets only save
# the time of reading it. GCC refuses a set whose flags differ from a user's, and -Werror makes that an error.
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
file(WRITE ${CMAKE_BINARY_DIR}/empty.cc.new "// Nothing: a target needs a file.\n")
file(COPY_FILE ${CMAKE_BINARY_DIR}/empty.cc.new ${CMAKE_BINARY_DIR}/empty.cc ONLY_IF_DIFFERENT)

function(_trainyard_precompile name)
  cmake_parse_arguments(ARG "" "" "LIBS;HEADERS" ${ARGN})
  add_library(precompiled_${name} OBJECT ${CMAKE_BINARY_DIR}/empty.cc)
  target_link_libraries(precompiled_${name} PRIVATE ${ARG_LIBS})
  target_precompile_headers(precompiled_${name} PRIVATE ${ARG_HEADERS})
endfunction()

set(messages <algorithm> <filesystem> <functional> <map> <memory> <optional> <set> <string> <vector>
    "<absl/container/flat_hash_map.h>" "<absl/status/statusor.h>" "<absl/strings/str_cat.h>" "<absl/strings/str_join.h>"
    "<absl/synchronization/mutex.h>" "<absl/time/time.h>" "<trainyard/v1/agent.pb.h>" "<trainyard/v1/service.pb.h>")
set(rpc ${messages} "<grpcpp/grpcpp.h>" "<trainyard/v1/agent.grpc.pb.h>" "<trainyard/v1/service.grpc.pb.h>"
    "<trainyard/v1/trainer.grpc.pb.h>")
_trainyard_precompile(messages LIBS trainyard::proto HEADERS ${messages})
_trainyard_precompile(rpc LIBS trainyard::grpc HEADERS ${rpc})
_trainyard_precompile(commands LIBS trainyard::grpc CLI11::CLI11 HEADERS ${rpc} "<CLI/CLI.hpp>")
_trainyard_precompile(tensors LIBS trainyard::torch_cpu HEADERS <algorithm> <functional> <memory> <string> <vector>
  "<absl/status/statusor.h>" "<absl/strings/str_cat.h>" "<absl/time/time.h>" "<ATen/core/Tensor.h>")
