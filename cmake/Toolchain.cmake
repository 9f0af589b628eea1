# Settings of compiler, linker and ccache for all our targets.
set(TRAINYARD_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")

find_program(CCACHE ccache)
if(CCACHE)
  # ccache requires this sloppiness for precompiled headers. With CCACHE_DEPEND it uses the dependency file of the
  # compiler, so it need not preprocess every file of a first build itself.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# Uses lld and not mold. mold is as fast, but Debian's mold 1.10 has two defects: a program does not start if a single
# byte of .tbss (LibTorch's headers define one) ends a page before .dynamic; -z norelro avoids that, but then mold
# sometimes hangs.
find_program(LLD ld.lld)
if(LLD)
  add_link_options(-fuse-ld=lld)
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-Og -g1)
  add_compile_definitions(TRAINYARD_CHECK_INVARIANTS=1)
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -g1")
endif()
# GCC spends a tenth of its time on garbage collection, so this delays it until a compilation uses half a gigabyte.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()

# Headers and their templates take most of a compilation and are the same for all files of a library, so several files
# are compiled together. Debug builds compile each file alone, so that an edit rebuilds one file only.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(unity 0)
else()
  set(unity 8)
endif()
set(TRAINYARD_UNITY ${unity} CACHE STRING "Number of source files of a target compiled together; 0: each file alone")

if(TRAINYARD_SANITIZE)
  add_compile_options(-fsanitize=${TRAINYARD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TRAINYARD_SANITIZE})
  add_compile_definitions(TRAINYARD_SANITIZED=1)
endif()

# Only for our code, not for third-party and generated code.
set(TRAINYARD_WARNINGS -Wall -Wextra -Werror)
