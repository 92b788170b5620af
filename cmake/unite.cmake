# Compiles the sources of each folder of a target as one file, where VARVE_UNITY is on. Most of a small
# source's compile time goes into the headers that its neighbours include too.
#
# A name in an anonymous namespace is therefore unique in its folder; each test has a named namespace of
# its own around it. tests/tidy looks at each source by itself, so it finds an include that is missing.
function(varve_unite target)
  if(NOT VARVE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  # g++ speaks up about anonymous namespaces in files that are included, as these then are.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
