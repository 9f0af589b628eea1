# trainyard_embed_text(VARIABLE OUTPUT FILE...): makes a C++ source with the texts of files, and sets VARIABLE to its
# path. A file page.css becomes `extern const char kTextOfPageCss[]` in the namespace trainyard.
#
# This file is also the script that the build runs, with OUTPUT and FILES, whenever one of the files has changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(source "// Made by cmake/EmbedText.cmake; do not edit.\nnamespace trainyard {\n")
  foreach(path ${FILES})
    file(READ ${path} text)
    get_filename_component(name ${path} NAME)
    string(REGEX REPLACE "[.]" ";" parts ${name})
    set(constant kTextOf)
    foreach(part ${parts})
      string(SUBSTRING ${part} 0 1 first)
      string(SUBSTRING ${part} 1 -1 rest)
      string(TOUPPER ${first} first)
      string(APPEND constant ${first}${rest})
    endforeach()
    string(APPEND source "extern const char ${constant}[];\n")
    string(APPEND source "const char ${constant}[] = R\"embedded(${text})embedded\";\n")
  endforeach()
  file(WRITE ${OUTPUT} "${source}}  // namespace trainyard\n")
  return()
endif()

function(trainyard_embed_text variable output)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${output})
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${source} "-DFILES=${ARGN}" -P ${CMAKE_SOURCE_DIR}/cmake/EmbedText.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/EmbedText.cmake VERBATIM)
  set(${variable} ${source} PARENT_SCOPE)
endfunction()
