# trainyard_library(NAME TIER core|control|engine SOURCES ... LIBS ...)
# trainyard_binary(NAME TIER ... SOURCES ... LIBS ...)      -> bin/NAME
# trainyard_test(NAME TIER ... SOURCES ... LIBS ...)        -> bin/tests/NAME, run by ctest; label = TIER
#
# PRECOMPILED plain|messages|rpc|tensors|none, in any of them, names a header set other than that of its tier
# (cmake/Precompiled.cmake). Precompiled headers halve the time of a clean build and change nothing else.
#
# This file enforces three link tiers: core (no torch, no gRPC), control (gRPC, no torch), engine (torch; neither gRPC
# nor protobuf). TIER meeting is for worker/trainer alone, where an engine and a control library meet behind plain C++
# headers.
include(GoogleTest)
find_package(GTest REQUIRED)

set(TRAINYARD_PRECOMPILED_core plain)
set(TRAINYARD_PRECOMPILED_control rpc)
set(TRAINYARD_PRECOMPILED_engine tensors)
set(TRAINYARD_PRECOMPILED_meeting none)

function(_trainyard_check_tier name tier)
  set(libs ${ARGN})
  if(tier STREQUAL "core")
    set(banned trainyard::grpc gRPC::grpc\\+\\+ trainyard::torch_cpu)
  elseif(tier STREQUAL "control")
    set(banned trainyard::torch_cpu)
  elseif(tier STREQUAL "engine")
    set(banned trainyard::grpc trainyard::proto gRPC::grpc\\+\\+ protobuf::libprotobuf)
  elseif(tier STREQUAL "meeting")
    set(banned)
  else()
    message(FATAL_ERROR "${name}: TIER must be core, control, engine or meeting, not '${tier}'")
  endif()
  foreach(library ${libs})
    foreach(ban ${banned})
      if(library MATCHES "^${ban}$")
        message(FATAL_ERROR "${name} is of the ${tier} tier and may not link ${library}")
      endif()
    endforeach()
    # A core library may use messages, but then no engine target may link it, however indirectly.
    get_property(brings_proto GLOBAL PROPERTY TRAINYARD_BRINGS_PROTO_${library})
    if(library MATCHES "^(trainyard::proto|trainyard::grpc|protobuf::libprotobuf)$" OR brings_proto)
      if(tier STREQUAL "engine")
        message(FATAL_ERROR "${name} is of the engine tier and may not link ${library}, which brings protobuf")
      endif()
      set_property(GLOBAL PROPERTY TRAINYARD_BRINGS_PROTO_${name} TRUE)
    endif()
    get_property(other GLOBAL PROPERTY TRAINYARD_TIER_${library})
    if((tier STREQUAL "core" AND other MATCHES "control|engine|meeting") OR
       (tier STREQUAL "control" AND other MATCHES "engine|meeting") OR
       (tier STREQUAL "engine" AND other MATCHES "control|meeting"))
      message(FATAL_ERROR "${name} is of the ${tier} tier and may not link ${library}, of the ${other} tier")
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY TRAINYARD_TIER_${name} ${tier})
endfunction()

macro(_trainyard_target)
  cmake_parse_arguments(ARG "" "TIER;PRECOMPILED" "SOURCES;LIBS" ${ARGN})
  _trainyard_check_tier(${name} ${ARG_TIER} ${ARG_LIBS})
endmacro()

# kind: empty, or _testing for a test program
function(_trainyard_common name kind)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${TRAINYARD_WARNINGS})
  if(NOT ARG_PRECOMPILED)
    set(ARG_PRECOMPILED ${TRAINYARD_PRECOMPILED_${ARG_TIER}})
  endif()
  if(NOT ARG_PRECOMPILED STREQUAL "none")
    target_precompile_headers(${name} REUSE_FROM precompiled_${ARG_PRECOMPILED}${kind})
  endif()
  if(TRAINYARD_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TRAINYARD_UNITY})
    # In a unity build GCC treats a .cc file as a header, and warns of classes whose members have types without linkage.
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Makes Abseil's mutexes visible to ThreadSanitizer (cmake/tsan_mutex.cc).
function(_trainyard_program name)
  if(TRAINYARD_SANITIZE MATCHES "thread")
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/tsan_mutex.cc)
    foreach(method 4LockEv 6UnlockEv 5AwaitERKNS0_9ConditionE 16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE D1Ev)
      target_link_options(${name} PRIVATE -Wl,--wrap=_ZN4absl7debian35Mutex${method})
    endforeach()
  endif()
endfunction()

function(trainyard_library name)
  _trainyard_target(${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  _trainyard_common(${name} "")
  target_link_libraries(${name} PUBLIC ${ARG_LIBS})
endfunction()

function(trainyard_binary name)
  _trainyard_target(${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _trainyard_common(${name} "")
  _trainyard_program(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
endfunction()

function(trainyard_test name)
  _trainyard_target(${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  _trainyard_common(${name} _testing)
  _trainyard_program(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  # Saves a fifth of the compilation time; the speed of tests does not matter.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gmock GTest::gtest GTest::gtest_main)
  add_test(NAME ${name}
    COMMAND ${name} --gtest_output=xml:${CMAKE_BINARY_DIR}/test-results/${name}.xml
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_TIER} TIMEOUT 300)
  if(ARG_TIER MATCHES "engine|meeting")
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_WITH_KERNELS ${name})
  endif()
endfunction()
