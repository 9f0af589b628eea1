# Debian packages: `./dev package`, or `cpack -G DEB` in the build folder after a build. Each is a group of components:
#   trainyard-coordinator, trainyard-worker             programs in /opt/trainyard, units, configuration
#   trainctl                                            trainctl, completion for shells, documents and examples
#   trainyard-libtorch-VERSION                          what trainyard-trainer loads on a CPU
# Libraries of Debian become dependencies by dpkg-shlibdeps. CUDA is not packaged (docs/operators.md).

file(STRINGS ${CMAKE_SOURCE_DIR}/common/version.h torch_version REGEX "kTorchVersion")
string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" torch_version "${torch_version}")
# CPack gives all packages the version of the project, so the version of LibTorch is part of the name.
set(libtorch_package trainyard-libtorch-${torch_version})

# Files that only packages contain have absolute paths, so `cmake --install` leaves them out.
set(systemd ${CMAKE_SOURCE_DIR}/deploy/systemd)
foreach(part coordinator worker)
  install(FILES ${systemd}/trainyard-${part}.service DESTINATION /lib/systemd/system
          COMPONENT ${part}-system EXCLUDE_FROM_ALL)
  install(FILES ${systemd}/trainyard.sysusers DESTINATION /usr/lib/sysusers.d RENAME trainyard-${part}.conf
          COMPONENT ${part}-system EXCLUDE_FROM_ALL)
  install(FILES ${systemd}/trainyard.tmpfiles DESTINATION /usr/lib/tmpfiles.d RENAME trainyard-${part}.conf
          COMPONENT ${part}-system EXCLUDE_FROM_ALL)
  install(FILES ${systemd}/${part}.yaml DESTINATION /etc/trainyard COMPONENT ${part}-system EXCLUDE_FROM_ALL)
endforeach()
foreach(entry coordinator:trainyard-coordinator worker:trainyard-worker trainctl:trainctl)
  string(REPLACE ":" ";" entry ${entry})
  list(GET entry 0 part)
  list(GET entry 1 program)
  install(CODE "file(MAKE_DIRECTORY \"\$ENV{DESTDIR}/usr/bin\")
                file(CREATE_LINK /opt/trainyard/bin/${program} \"\$ENV{DESTDIR}/usr/bin/${program}\" SYMBOLIC)"
          COMPONENT ${part}-system EXCLUDE_FROM_ALL)
endforeach()
# Completion scripts are printed by the program that was built.
install(CODE "
  foreach(place bash:bash-completion/completions/trainctl zsh:zsh/vendor-completions/_trainctl
          fish:fish/vendor_completions.d/trainctl.fish)
    string(REPLACE \":\" \";\" place \${place})
    list(GET place 0 shell)
    list(GET place 1 file)
    execute_process(COMMAND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/trainctl completion \${shell}
                    OUTPUT_VARIABLE script COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE \"\$ENV{DESTDIR}/usr/share/\${file}\" \"\${script}\")
  endforeach()" COMPONENT trainctl-system EXCLUDE_FROM_ALL)
# The programs also print their manual pages: section 1 for trainctl and its verbs, 8 for the daemons.
install(CODE "
  set(pages \"\$ENV{DESTDIR}/usr/share/man/man1\")
  file(MAKE_DIRECTORY \"\${pages}\")
  execute_process(COMMAND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/trainctl help --man-pages \"\${pages}\"
                  COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB pages \"\${pages}/*.1\")
  execute_process(COMMAND gzip -9n \${pages} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT trainctl-system EXCLUDE_FROM_ALL)
foreach(part coordinator worker)
  install(CODE "
    set(page \"\$ENV{DESTDIR}/usr/share/man/man8/trainyard-${part}.8\")
    file(MAKE_DIRECTORY \"\$ENV{DESTDIR}/usr/share/man/man8\")
    execute_process(COMMAND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/trainyard-${part} --print-man OUTPUT_FILE \"\${page}\"
                    COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND gzip -9n \"\${page}\" COMMAND_ERROR_IS_FATAL ANY)"
          COMPONENT ${part}-system EXCLUDE_FROM_ALL)
endforeach()
# Debian policy: every package has its copyright.
file(GLOB torch_licence ${wheels}/torch-*.dist-info/licenses/LICENSE)
foreach(entry coordinator:trainyard-coordinator worker:trainyard-worker trainctl:trainctl libtorch:${libtorch_package})
  string(REPLACE ":" ";" entry ${entry})
  list(GET entry 0 part)
  list(GET entry 1 package)
  set(copyright ${CMAKE_SOURCE_DIR}/LICENSE)
  if(part STREQUAL "libtorch" AND torch_licence)
    set(copyright ${torch_licence})
  endif()
  install(FILES ${copyright} DESTINATION /usr/share/doc/${package} RENAME copyright
          COMPONENT ${part}-system EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_PACKAGE_NAME trainyard)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR Trainyard)
set(CPACK_PACKAGE_CONTACT "Trainyard <trainyard@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
# Absolute destinations need DESTDIR; relative ones are below this prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /opt/trainyard)
set(CPACK_COMPONENTS_ALL coordinator coordinator-system worker worker-system trainctl trainctl-system documents
    libtorch libtorch-system)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# dpkg-shlibdeps finds the wheels' libraries here. No Debian package has them, so it derives no dependency from them;
# the dependency on the package of LibTorch is given explicitly below.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TRAINYARD_TORCH_ROOT}/lib ${wheels}/nvidia/cu13/lib)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(makes_users_and_folders "systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_NAME trainyard-coordinator)
# The certificates are for webhooks over https.
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_RECOMMENDS "trainctl, systemd, ca-certificates")
set(CPACK_DEBIAN_COORDINATOR_PACKAGE_DEPENDS "${makes_users_and_folders}")
set(CPACK_COMPONENT_COORDINATOR_DESCRIPTION
    "Coordinator of distributed training\n It accepts jobs, places their ranks on hosts and restarts them.")
set(CPACK_DEBIAN_WORKER_PACKAGE_NAME trainyard-worker)
set(CPACK_DEBIAN_WORKER_PACKAGE_DEPENDS "${libtorch_package}, ${makes_users_and_folders}")
set(CPACK_DEBIAN_WORKER_PACKAGE_RECOMMENDS "trainctl, systemd")
set(CPACK_COMPONENT_WORKER_DESCRIPTION
    "Worker daemon and trainer of distributed training\n The daemon runs the trainers of one host.")
set(CPACK_DEBIAN_TRAINCTL_PACKAGE_NAME trainctl)
set(CPACK_DEBIAN_TRAINCTL_PACKAGE_SUGGESTS trainyard-worker)
set(CPACK_COMPONENT_TRAINCTL_DESCRIPTION
    "Command line of Trainyard\n Submits, follows and changes jobs. sample and run need trainyard-worker.")
set(CPACK_DEBIAN_LIBTORCH_PACKAGE_NAME ${libtorch_package})
set(CPACK_DEBIAN_LIBTORCH_PACKAGE_PROVIDES trainyard-libtorch)
set(CPACK_DEBIAN_LIBTORCH_PACKAGE_CONFLICTS trainyard-libtorch)
set(CPACK_DEBIAN_LIBTORCH_PACKAGE_REPLACES trainyard-libtorch)
set(CPACK_COMPONENT_LIBTORCH_DESCRIPTION
    "CPU libraries of PyTorch for trainyard-worker\n They are those of the wheels in requirements/build.txt.")
foreach(part COORDINATOR WORKER)
  string(TOLOWER ${part} name)
  set(scripts ${CMAKE_BINARY_DIR}/debian/${name})
  set(CPACK_DEBIAN_${part}_PACKAGE_CONTROL_EXTRA
      ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm ${scripts}/conffiles)
  foreach(script postinst prerm postrm conffiles)
    configure_file(${CMAKE_SOURCE_DIR}/deploy/debian/${script}.in ${scripts}/${script} @ONLY)
  endforeach()
endforeach()

include(CPack)
foreach(part coordinator worker trainctl libtorch)
  cpack_add_component_group(${part})
  cpack_add_component(${part} GROUP ${part})
  cpack_add_component(${part}-system GROUP ${part})
endforeach()
cpack_add_component(documents GROUP trainctl)
