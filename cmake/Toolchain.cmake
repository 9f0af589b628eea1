# Compiler, linker and cache settings shared by every target of ours.
set(TRAINYARD_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined")

find_program(CCACHE ccache)
if(CCACHE)
  # The sloppiness is what ccache asks for where headers are precompiled; by dependencies it need not preprocess every
  # file of a first build twice.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1 ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# Not mold, which is as fast: Debian's 1.10 makes a program that does not start where a single byte of .tbss (LibTorch's
# headers bring one) ends a page before .dynamic, and without a read-only stretch some links never end.
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
# Garbage collection costs GCC a tenth of its time; it starts once a compilation uses half a gigabyte.
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
set(TRAINYARD_UNITY ${unity} CACHE STRING "Source files of a target that are compiled at once; 0: each by itself")

if(TRAINYARD_SANITIZE)
  add_compile_options(-fsanitize=${TRAINYARD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TRAINYARD_SANITIZE})
  add_compile_definitions(TRAINYARD_SANITIZED=1)
endif()

# Ours only: third-party and generated code is compiled as its makers left it.
set(TRAINYARD_WARNINGS -Wall -Wextra -Werror)
