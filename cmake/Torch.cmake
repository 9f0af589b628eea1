# Imported targets of the pinned PyPI wheel. find_package(Torch) is not used, because it requires a CUDA toolkit.
#   trainyard::torch_cpu   tensors, autograd, c10d with gloo
# A file that includes torch may include neither protobuf nor gRPC: the wheel contains the headers of an older protobuf.
set(TRAINYARD_TORCH_ROOT "" CACHE PATH "The wheel's folder: site-packages/torch")
if(NOT EXISTS ${TRAINYARD_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch at TRAINYARD_TORCH_ROOT='${TRAINYARD_TORCH_ROOT}'. Run ./dev setup, which puts the "
                      "pinned wheel there, or name the folder of an installed torch==2.11.0.")
endif()

function(trainyard_torch_library name file)
  add_library(trainyard::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(trainyard::${name} PROPERTIES IMPORTED_LOCATION ${TRAINYARD_TORCH_ROOT}/lib/${file})
  target_include_directories(trainyard::${name} SYSTEM INTERFACE
    ${TRAINYARD_TORCH_ROOT}/include ${TRAINYARD_TORCH_ROOT}/include/torch/csrc/api/include)
endfunction()

trainyard_torch_library(c10 libc10.so)
trainyard_torch_library(torch_cpu libtorch_cpu.so)
target_link_libraries(trainyard::torch_cpu INTERFACE trainyard::c10)
# The wheel's OpenMP runtime, which LibTorch loads too, for code that is compiled with -fopenmp.
if(EXISTS ${TRAINYARD_TORCH_ROOT}/lib/libgomp.so.1)
  trainyard_torch_library(gomp libgomp.so.1)
endif()
target_compile_definitions(trainyard::torch_cpu INTERFACE
  USE_DISTRIBUTED USE_C10D_GLOO AT_PER_OPERATOR_HEADERS FMT_HEADER_ONLY=1)
# The c10d headers of the wheel include headers of gloo that the wheel does not contain. These stubs suffice, because
# nothing of gloo is called directly.
target_include_directories(trainyard::torch_cpu SYSTEM INTERFACE ${CMAKE_SOURCE_DIR}/cmake/gloo-stub)
target_link_options(trainyard::torch_cpu INTERFACE
  "LINKER:-rpath-link,${TRAINYARD_TORCH_ROOT}/../nvidia/cu13/lib")
