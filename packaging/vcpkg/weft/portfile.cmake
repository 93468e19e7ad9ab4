# vcpkg's port, which builds the repository that it lies in: vcpkg install weft --overlay-ports=packaging/vcpkg
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
set(VCPKG_BUILD_TYPE release)
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

set(tools false)
if("tools" IN_LIST FEATURES)
  set(tools true)
endif()

vcpkg_configure_meson(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -Dtests=false
    -Dexamples=false
    -Dtools=${tools}
    -Dbench=${tools}
    -Ducx=disabled
    -Dmpi=disabled
    -Dcuda=disabled
    -Dnccl=disabled
    -Djax=disabled
)
vcpkg_install_meson()
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES weft weft-bench AUTO_CLEAN)
endif()

# weft-config.cmake finds the library by its own place, so it stays in lib/cmake.
set(VCPKG_POLICY_SKIP_MISPLACED_CMAKE_FILES_CHECK enabled)
set(VCPKG_POLICY_SKIP_LIB_CMAKE_MERGE_CHECK enabled)
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
