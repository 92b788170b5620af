# The libraries that varve links, as imported targets. Used twice: by the build, and by the installed
# package config, because users of a static library have to link them too.
include(CMakeFindDependencyMacro)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_dependency(Threads)
find_dependency(simdjson)
find_dependency(CURL 7.85)
find_dependency(OpenSSL 3.0)
find_dependency(pugixml)

# Debian ships no CMake package for these.
function(_varve_find_library target name header)
  if(TARGET ${target})
    return()
  endif()
  string(MAKE_C_IDENTIFIER "VARVE_${name}" id)
  find_library(${id}_LIBRARY ${name})
  find_path(${id}_INCLUDE_DIR ${header})
  mark_as_advanced(${id}_LIBRARY ${id}_INCLUDE_DIR)
  if(NOT ${id}_LIBRARY OR NOT ${id}_INCLUDE_DIR)
    message(FATAL_ERROR "varve needs lib${name} with its header ${header}; "
                        "./setup names the Debian packages that hold them")
  endif()
  add_library(${target} UNKNOWN IMPORTED)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION "${${id}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${${id}_INCLUDE_DIR}")
endfunction()

_varve_find_library(varve_dep::isal isal isa-l/crc.h)
_varve_find_library(varve_dep::xxhash xxhash xxhash.h)
_varve_find_library(varve_dep::zstd zstd zstd.h)
_varve_find_library(varve_dep::zlib z zlib.h)
