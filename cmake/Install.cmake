# cmake --install build --prefix DIR [--component NAME]. Without a component it installs coordinator, worker, trainctl,
# libtorch and documents. All programs are in DIR/bin, where each looks for the others. Nothing installed contains the
# path of the build machine, so DIR can be copied to other hosts.
#   coordinator   trainyard-coordinator
#   worker        trainyard-worker, trainyard-shim, trainyard-trainer, libtrainyard_sentencepiece.so; needs libtorch
#   trainctl      trainctl; `sample`, `tokenize --build`, tokenizers of SentencePiece and the kernels that `env` shows
#                 also need the component worker; `parity`, and `run` and `launch` without --coordinator, also need
#                 worker and coordinator
#   libtorch      the libraries of the pinned wheels that trainyard-trainer needs on a CPU
#   cuda          libtrainyard_cuda.so and the libraries of the pinned wheels that libtorch lacks, 3 GB; only on request
#   documents     documents, examples and the files of deploy/
# cmake/Package.cmake adds components that only Debian packages contain.

install(TARGETS trainyard-coordinator RUNTIME DESTINATION bin COMPONENT coordinator)
install(TARGETS trainctl RUNTIME DESTINATION bin COMPONENT trainctl)
install(TARGETS trainyard-worker trainyard-shim trainyard-trainer RUNTIME DESTINATION bin COMPONENT worker)
install(TARGETS trainyard_sentencepiece LIBRARY DESTINATION bin COMPONENT worker)

# lib/torch and lib/nvidia have the same places relative to each other as in the wheels, because the libraries of the
# wheels find each other by relative paths.
set(installed_torch "$ORIGIN/../lib/torch/lib")
set_target_properties(trainyard-trainer PROPERTIES INSTALL_RPATH "${installed_torch}")
cmake_path(GET TRAINYARD_TORCH_ROOT PARENT_PATH wheels)
install(FILES ${TRAINYARD_TORCH_ROOT}/lib/libc10.so ${TRAINYARD_TORCH_ROOT}/lib/libtorch_cpu.so
              ${TRAINYARD_TORCH_ROOT}/lib/libgomp.so.1
        DESTINATION lib/torch/lib COMPONENT libtorch)
install(FILES ${wheels}/nvidia/cu13/lib/libcupti.so.13 ${wheels}/nvidia/cu13/lib/libcudart.so.13
        DESTINATION lib/nvidia/cu13/lib COMPONENT libtorch)
foreach(wheel torch nvidia_cuda_cupti nvidia_cuda_runtime)
  file(GLOB licences LIST_DIRECTORIES true ${wheels}/${wheel}-*.dist-info/licenses)
  if(licences)
    install(DIRECTORY ${licences}/ DESTINATION share/doc/trainyard/licences/${wheel} COMPONENT libtorch)
  endif()
endforeach()

if(TARGET trainyard_cuda)
  set_target_properties(trainyard_cuda PROPERTIES INSTALL_RPATH
    "${installed_torch}:$ORIGIN/../lib/nvidia/nccl/lib:$ORIGIN/../lib/nvidia/cu13/lib")
  install(TARGETS trainyard_cuda LIBRARY DESTINATION bin COMPONENT cuda EXCLUDE_FROM_ALL)
  install(DIRECTORY ${TRAINYARD_TORCH_ROOT}/lib DESTINATION lib/torch COMPONENT cuda EXCLUDE_FROM_ALL
          FILES_MATCHING PATTERN "*.so" PATTERN "*.so.*" PATTERN "libtorch_python.so" EXCLUDE
          PATTERN "libshm*" EXCLUDE REGEX "/lib(torch_cpu|c10|gomp)\\.so" EXCLUDE)
  # LibTorch does not use libcusolverMg, a solver for several GPUs. Here libcusolverMg would not find its libraries.
  install(DIRECTORY ${wheels}/nvidia DESTINATION lib COMPONENT cuda EXCLUDE_FROM_ALL
          FILES_MATCHING PATTERN "*.so.*" PATTERN "License.txt" REGEX "/lib(cupti|cudart|cusolverMg)\\.so" EXCLUDE)
endif()

install(DIRECTORY configs deploy DESTINATION share/trainyard COMPONENT documents)
install(DIRECTORY proto DESTINATION share/trainyard COMPONENT documents FILES_MATCHING PATTERN "*.proto")
install(FILES LICENSE README.md CHANGELOG.md DESTINATION share/doc/trainyard COMPONENT documents)
install(DIRECTORY docs DESTINATION share/doc/trainyard COMPONENT documents)
