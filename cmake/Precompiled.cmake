# Sets of large headers that are compiled once and shared by targets. Every file still includes what it uses; the sets
# only save the time to parse it. GCC rejects a set whose flags differ from those of the file, and -Werror makes that an
# error.
#
#   plain      Abseil and JSON                         the core tier without protobuf
#   messages   plain and our protobuf messages         the core tier with protobuf
#   rpc        messages, gRPC and the command line     the control tier
#   tensors    Abseil and ATen                         the engine tier
#
# For each set, NAME_testing also contains GoogleTest, for test programs. The functions of Targets.cmake choose plain,
# rpc or tensors by the tier of a target, none for the tier `meeting`; PRECOMPILED names another set, such as messages.
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(absl REQUIRED)
file(WRITE ${CMAKE_BINARY_DIR}/empty.cc.new "// Empty, because a target needs a source file.\n")
file(COPY_FILE ${CMAKE_BINARY_DIR}/empty.cc.new ${CMAKE_BINARY_DIR}/empty.cc ONLY_IF_DIFFERENT)

function(_trainyard_precompile name)
  cmake_parse_arguments(ARG "" "" "LIBS;HEADERS" ${ARGN})
  foreach(set ${name} ${name}_testing)
    add_library(precompiled_${set} OBJECT ${CMAKE_BINARY_DIR}/empty.cc)
    target_link_libraries(precompiled_${set} PRIVATE ${ARG_LIBS})
    target_precompile_headers(precompiled_${set} PRIVATE ${ARG_HEADERS})
  endforeach()
  target_link_libraries(precompiled_${name}_testing PRIVATE GTest::gmock)
  target_precompile_headers(precompiled_${name}_testing PRIVATE "<gmock/gmock.h>" "<gtest/gtest.h>")
endfunction()

set(plain <algorithm> <filesystem> <functional> <map> <memory> <optional> <set> <string> <vector>
    "<absl/container/flat_hash_map.h>" "<absl/status/statusor.h>" "<absl/strings/str_cat.h>"
    "<absl/strings/str_format.h>" "<absl/strings/str_join.h>"
    "<absl/strings/str_split.h>" "<absl/synchronization/mutex.h>" "<absl/time/clock.h>"
    "<absl/time/time.h>" "<nlohmann/json.hpp>")
set(messages ${plain} "<trainyard/v1/agent.pb.h>" "<trainyard/v1/service.pb.h>")
set(rpc ${messages} "<grpcpp/grpcpp.h>" "<trainyard/v1/agent.grpc.pb.h>" "<trainyard/v1/service.grpc.pb.h>"
    "<trainyard/v1/trainer.grpc.pb.h>" "<CLI/CLI.hpp>")
_trainyard_precompile(plain LIBS absl::base HEADERS ${plain})
_trainyard_precompile(messages LIBS trainyard::proto HEADERS ${messages})
_trainyard_precompile(rpc LIBS trainyard::grpc CLI11::CLI11 HEADERS ${rpc})
_trainyard_precompile(tensors LIBS trainyard::torch_cpu HEADERS <algorithm> <functional> <memory> <string> <vector>
  "<absl/status/statusor.h>" "<absl/strings/str_cat.h>" "<absl/time/time.h>" "<ATen/core/Tensor.h>")
