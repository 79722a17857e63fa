# SPDX-License-Identifier: Apache-2.0
# Where the library goes: shared and static, with its headers, the CMake package and the pkg-config file; tools/ installs
# the command and its models. Everything finds everything else relative to itself, so a prefix can be moved.
include(CMakePackageConfigHelpers)

set_target_properties(replayssm_static PROPERTIES EXPORT_NAME static)
add_library(replayssm::replayssm ALIAS replayssm)
add_library(replayssm::static ALIAS replayssm_static)

install(TARGETS replayssm replayssm_static EXPORT replayssm-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT dev
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(DIRECTORY include/replayssm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/replayssm)
configure_package_config_file(cmake/replayssm-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/replayssm-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/replayssm-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/replayssm-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/replayssm-config-version.cmake
  DESTINATION ${package_dir} COMPONENT dev)
install(EXPORT replayssm-targets NAMESPACE replayssm:: DESTINATION ${package_dir} COMPONENT dev)

file(RELATIVE_PATH prefix_of_pkgconfig /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(packaging/replayssm.pc.in ${CMAKE_CURRENT_BINARY_DIR}/replayssm.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/replayssm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
