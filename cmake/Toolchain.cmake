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

find_program(MOLD mold)
if(MOLD)
  # Where a page ends right before .dynamic, mold lets the read-only stretch begin in the page before, which is in no
  # segment, if a single byte of .tbss stands there (LibTorch's headers bring one): the program does not start.
  add_link_options(-fuse-ld=mold LINKER:-z,norelro)
endif()

if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-Og -g1)
  add_compile_definitions(TRAINYARD_CHECK_INVARIANTS=1)
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG -g1")
endif()

if(TRAINYARD_SANITIZE)
  add_compile_options(-fsanitize=${TRAINYARD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TRAINYARD_SANITIZE})
  add_compile_definitions(TRAINYARD_SANITIZED=1)
endif()

# Ours only: third-party and generated code is compiled as its makers left it.
set(TRAINYARD_WARNINGS -Wall -Wextra -Werror)
