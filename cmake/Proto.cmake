# Generated code of proto/trainyard/v1 and proto/google/rpc:
#   trainyard::proto   messages (core tier)
#   trainyard::grpc    services (control tier); brings gRPC
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(Threads REQUIRED)

set(TRAINYARD_PROTO_DIR ${CMAKE_SOURCE_DIR}/proto)
set(TRAINYARD_GENERATED_DIR ${CMAKE_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${TRAINYARD_GENERATED_DIR})
file(GLOB protos CONFIGURE_DEPENDS RELATIVE ${TRAINYARD_PROTO_DIR} ${TRAINYARD_PROTO_DIR}/trainyard/v1/*.proto
  ${TRAINYARD_PROTO_DIR}/google/rpc/*.proto)
get_target_property(grpc_plugin gRPC::grpc_cpp_plugin LOCATION)

set(proto_sources)
set(grpc_sources)
foreach(proto ${protos})
  string(REGEX REPLACE "[.]proto$" "" stem ${proto})
  set(out ${TRAINYARD_GENERATED_DIR}/${stem})
  file(READ ${TRAINYARD_PROTO_DIR}/${proto} text)
  string(FIND "${text}" "\nservice " has_service)
  set(outputs ${out}.pb.cc ${out}.pb.h)
  set(flags --cpp_out=${TRAINYARD_GENERATED_DIR})
  list(APPEND proto_sources ${out}.pb.cc)
  if(NOT has_service EQUAL -1)
    list(APPEND outputs ${out}.grpc.pb.cc ${out}.grpc.pb.h)
    list(APPEND flags --grpc_out=${TRAINYARD_GENERATED_DIR} --plugin=protoc-gen-grpc=${grpc_plugin})
    list(APPEND grpc_sources ${out}.grpc.pb.cc)
  endif()
  add_custom_command(OUTPUT ${outputs}
    COMMAND protobuf::protoc -I ${TRAINYARD_PROTO_DIR} ${flags} ${proto}
    DEPENDS ${TRAINYARD_PROTO_DIR}/${proto} VERBATIM)
endforeach()

add_library(trainyard_proto STATIC ${proto_sources})
add_library(trainyard::proto ALIAS trainyard_proto)
target_include_directories(trainyard_proto SYSTEM PUBLIC ${TRAINYARD_GENERATED_DIR})
target_link_libraries(trainyard_proto PUBLIC protobuf::libprotobuf)

add_library(trainyard_grpc STATIC ${grpc_sources})
add_library(trainyard::grpc ALIAS trainyard_grpc)
target_link_libraries(trainyard_grpc PUBLIC trainyard_proto gRPC::grpc++)
