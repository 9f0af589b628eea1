# Targets for libtrainyard_cuda.so alone (worker/cuda), from the pinned wheels that requirements/full.txt adds. Neither
# an installed CUDA toolkit nor nvcc is used.
#   trainyard::torch_cuda   CUDA kernels, c10d with NCCL, NCCL itself
# Not defined while only the wheels of requirements/build.txt are installed. CMake runs again when the other wheels
# appear.
cmake_path(GET TRAINYARD_TORCH_ROOT PARENT_PATH packages)
file(GLOB cuda_parts CONFIGURE_DEPENDS
  ${packages}/nvidia/cu13/include/cuda_runtime_api.h
  ${packages}/nvidia/cu13/include/crt/host_defines.h
  ${packages}/nvidia/cu13/include/cublas_v2.h
  ${packages}/nvidia/cu13/include/cusparse.h
  ${packages}/nvidia/cu13/include/cusolverDn.h
  ${packages}/nvidia/cu13/include/nvrtc.h
  ${packages}/nvidia/cu13/lib/libcudart.so.13
  ${packages}/nvidia/nccl/include/nccl.h
  ${packages}/nvidia/nccl/lib/libnccl.so.2)
list(LENGTH cuda_parts num_cuda_parts)
if(num_cuda_parts LESS 9)
  message(STATUS "libtrainyard_cuda.so is not built: ./dev setup full installs the wheels that it needs")
  return()
endif()

trainyard_torch_library(c10_cuda libc10_cuda.so)
trainyard_torch_library(torch_cuda libtorch_cuda.so)
foreach(name cudart:cu13/lib/libcudart.so.13 nccl:nccl/lib/libnccl.so.2)
  string(REPLACE ":" ";" name ${name})
  list(GET name 1 file)
  list(GET name 0 name)
  add_library(trainyard::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(trainyard::${name} PROPERTIES IMPORTED_LOCATION ${packages}/nvidia/${file})
endforeach()
target_include_directories(trainyard::torch_cuda SYSTEM INTERFACE
  ${packages}/nvidia/cu13/include ${packages}/nvidia/nccl/include)
target_compile_definitions(trainyard::torch_cuda INTERFACE USE_C10D_NCCL)
target_link_libraries(trainyard::torch_cuda INTERFACE
  trainyard::torch_cpu trainyard::c10_cuda trainyard::nccl trainyard::cudart)
